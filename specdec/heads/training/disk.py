"""Writing a run's files: a full or read-only disk is an error with a remedy."""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from specdec.errors import RequestError

TEXT = "text.npz"
PART = ".specdec-part-"  # begins the names of unfinished files
# Those after the first are replace_file's.
_LEFTOVERS = f"{PART}*", ".text.npz.*.part", ".text.json.*.part"


def check_resumed(folder: Path, is_resumed: bool) -> None:
    """Refuse a folder with text of an earlier run that isn't resumed, or without any that is.

    Raises:
        RequestError: with the remedy.
    """
    has_text = (folder / TEXT).exists()
    if is_resumed and not has_text:
        raise RequestError(f"{folder} has no text of an earlier run to resume: leave out --resume")
    if has_text and not is_resumed:
        raise RequestError(f"{folder} has text of an earlier run: resume it (--resume), or give another folder")


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
            "on (--resume, if text was saved), or give another folder (--out)"
        ) from error


def prepare_folder(folder: Path, num_bytes: int, replaced: Collection[str] = ()) -> None:
    """Make a run's folder, without the unfinished files of a run that was killed, and with room for ``num_bytes``.

    Args:
        folder: the run's folder.
        num_bytes: of all files that the run writes.
        replaced: names of files that count as part of them, if they exist, because the run replaces them.

    Raises:
        RequestError: it can't be made, or the disk has less room.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{folder} can't be made ({error.strerror}): give another folder (--out)") from error
    with writing_to(folder):
        for pattern in _LEFTOVERS:
            for part in folder.glob(pattern):
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        free = shutil.disk_usage(folder).free
        num_bytes -= sum((folder / name).stat().st_size for name in replaced if (folder / name).exists())
    if free < num_bytes:
        raise RequestError(
            f"{folder} has room for {_megabytes(free)}, and this training needs about {_megabytes(num_bytes)}"
            " more: free some space, or give a folder on another disk (--out)"
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
