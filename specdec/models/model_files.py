"""The files of a model that is given by name: in its folder, or on the hub."""

from contextlib import suppress
from pathlib import Path


def model_file(name: str, file: str, is_offline: bool) -> Path | None:
    """Return a file of a folder, or of a model on the hub, which is fetched; None if there is none.

    Args:
        name: a folder or a hub name.
        file: its name, such as ``config.json``.
        is_offline: search the hub's cache alone.
    """
    if Path(name).is_dir():
        return Path(name, file) if Path(name, file).is_file() else None
    from transformers.utils import cached_file

    with suppress(OSError, ValueError):
        found = cached_file(name, file, local_files_only=is_offline, _raise_exceptions_for_missing_entries=False)
        return None if found is None else Path(found)
    return None
