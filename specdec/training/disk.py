"""Writing a run's files: a full or read-only disk is an error with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from specdec.errors import RequestError


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Raise a RequestError with the folder's name if the block can't write.

    Raises:
        RequestError: the disk is full, or the folder can't be written to.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(
            f"{folder} can't be written to ({reason}): free some space or give another folder; what was written before "
            "is still there"
        ) from error
