"""The plug-ins that come with specdec, registered in the same way as third-party ones."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.names import BUILT_INS


@hookimpl
def specdec_proposers() -> Mapping[str, str]:
    return BUILT_INS["proposers"]


@hookimpl
def specdec_verifiers() -> Mapping[str, str]:
    return BUILT_INS["verifiers"]


@hookimpl
def specdec_masks() -> Mapping[str, str]:
    return BUILT_INS["masks"]


@hookimpl
def specdec_constraints() -> Mapping[str, str]:
    return BUILT_INS["constraints"]


@hookimpl
def specdec_kernels() -> Mapping[str, str]:
    return BUILT_INS["kernels"]


@hookimpl
def specdec_backends() -> Mapping[str, str]:
    return BUILT_INS["backends"]


def built_in(kind: str, name: str) -> Any:
    """Return an implementation that comes with specdec, with default options."""
    return resolve_name(BUILT_INS[kind][name])()
