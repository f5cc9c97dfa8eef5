"""The plug-ins that come with specdec, registered in the same way as third-party ones."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from specdec.backends.base import Backend
from specdec.constraints.base import Constraint
from specdec.masks.base import MaskCompiler
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.names import BUILT_INS
from specdec.strategies.base import Proposer
from specdec.verifiers.base import Verifier
from specdec.weights.base import Kernel


@hookimpl
def specdec_proposers() -> Mapping[str, type[Proposer]]:
    return _classes("proposers")


@hookimpl
def specdec_verifiers() -> Mapping[str, type[Verifier]]:
    return _classes("verifiers")


@hookimpl
def specdec_masks() -> Mapping[str, type[MaskCompiler]]:
    return _classes("masks")


@hookimpl
def specdec_constraints() -> Mapping[str, type[Constraint]]:
    return _classes("constraints")


@hookimpl
def specdec_kernels() -> Mapping[str, type[Kernel]]:
    return _classes("kernels")


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    """Called last by a registry: transformers' model code takes seconds to import."""
    return _classes("backends")


def _classes(kind: str) -> dict[str, Any]:
    return {name: resolve_name(place) for name, place in BUILT_INS[kind].items()}


def built_in(kind: str, name: str) -> Any:
    """Return a built-in implementation with its default options, without a registry."""
    return resolve_name(BUILT_INS[kind][name])()
