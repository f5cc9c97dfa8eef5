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
    from huggingface_hub import hf_hub_download

    with suppress(OSError, ValueError):
        return Path(hf_hub_download(name, file, local_files_only=is_offline))
    return None
