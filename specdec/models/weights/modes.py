"""The values of ``weights=``: modes, and the names of kernels."""

from collections.abc import Iterable

from specdec.errors import RequestError

MODES = "auto", "packed", "stock"


def checked_weights(requested: object, kernels: Iterable[str]) -> str:
    """Return the requested mode, or the name of one of the installed ``kernels``.

    Raises:
        RequestError: for an unknown mode or kernel.
    """
    names = [*MODES, *sorted(kernels)]
    if requested not in names:
        raise RequestError(f"weights={requested!r}: it must be one of {', '.join(names)}")
    return str(requested)
