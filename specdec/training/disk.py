"""Writing a run's files: a full or read-only disk is an error with a remedy."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from specdec.errors import RequestError

_PARTS = ".part-*", "*.partial.npz"


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
            f"{folder} can't be written to ({reason}): what was written before is still there; free some space and go "
            "on with it (--resume), or give another folder"
        ) from error


def prepare_folder(folder: Path, num_bytes: int) -> None:
    """Make a run's folder, without the unfinished files of a run that was killed, and with room for ``num_bytes``.

    Raises:
        RequestError: it can't be made, or the disk has less room.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in _PARTS:
            for part in folder.glob(pattern):
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise RequestError(
            f"{folder} has room for {_megabytes(free)}, and training this head needs about {_megabytes(num_bytes)}: "
            "free some space, or give a folder on another disk (--out)"
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
