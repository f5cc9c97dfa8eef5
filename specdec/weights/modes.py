"""The values that ``weights=`` may have: modes, and the names of kernels."""

from specdec.errors import RequestError
from specdec.plugins.registry import Registry

MODES = "auto", "packed", "stock"


def checked_weights(requested: object, registry: Registry) -> str:
    """Return the mode, or the name of a kernel, that was requested.

    Raises:
        RequestError: for one that doesn't exist.
    """
    names = [*MODES, *sorted(registry.name_of(plugin) for plugin in registry.of_kind("kernels"))]
    if requested not in names:
        raise RequestError(f"weights={requested!r}: it must be one of {', '.join(names)}")
    return str(requested)
