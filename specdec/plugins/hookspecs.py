"""The hooks by which plug-ins offer implementations: one per contract, which returns a mapping of name to class.

In place of a class, a mapping may have where it is imported from, ``"module:Class"``, which is done at its first use.
"""

from collections.abc import Mapping, Sequence

import pluggy

from specdec.backends.base import Backend
from specdec.constraints.base import Constraint
from specdec.masks.base import MaskCompiler
from specdec.models.weights.base import Kernel
from specdec.plugins.names import PROJECT
from specdec.strategies.base import LocalSource, Proposer
from specdec.verifiers.base import Verifier

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def specdec_proposers() -> Mapping[str, type[Proposer] | str]:  # type: ignore[empty-body]  # pluggy calls implementations
    """Strategies by name."""


@hookspec
def specdec_verifiers() -> Mapping[str, type[Verifier] | str]:  # type: ignore[empty-body]  # as above
    """Acceptance rules by name."""


@hookspec
def specdec_masks() -> Mapping[str, type[MaskCompiler] | str]:  # type: ignore[empty-body]  # as above
    """Mask compilers by name."""


@hookspec
def specdec_backends() -> Mapping[str, type[Backend] | str]:  # type: ignore[empty-body]  # as above
    """Backends by name.

    For a model object, ``backend="auto"`` selects the first that accepts it; for a model given by name, the first
    that ``is_preferred`` and doesn't decline it.
    """


@hookspec
def specdec_constraints() -> Mapping[str, type[Constraint] | str]:  # type: ignore[empty-body]  # as above
    """Constraints on text by name."""


@hookspec
def specdec_kernels() -> Mapping[str, type[Kernel] | str]:  # type: ignore[empty-body]  # as above
    """Kernels for packed weights by name; ``weights="auto"`` takes the fastest that isn't lossy."""


@hookspec
def specdec_local_sources(model: object, engine: str) -> Sequence[LocalSource]:  # type: ignore[empty-body]  # as above
    """Strategies that were prepared on this machine for this very model; ``auto`` merges them when it is bound."""
