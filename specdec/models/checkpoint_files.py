"""The files of a model that is given by name, and by these the remedy if the model can't be loaded."""

import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from specdec.models.gguf_file import is_gguf

GIVE_A_MODEL = "Give a folder with safetensors weights, or a hub name"
_LFS_POINTER = b"version https://git-lfs"
CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"  # a model has the one or the other
NO_CONFIG = f"it has no {CONFIG}"


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


def remedy_for_files(name: str) -> str:
    """Return what to give or to do instead of a path or hub name that couldn't be loaded.

    Called after an error. Only the headers of weight files are read.
    """
    folder = Path(name)
    config = model_file(name, CONFIG, is_offline=True)
    place = folder if config is None else config.parent
    files = sorted(place.glob("*")) if place.is_dir() else []
    if gguf := [file for file in files if is_gguf(file.name)]:
        return f"It has a GGUF file: give {str(gguf[0])!r}"
    if any(file.name == "openvino_model.xml" for file in files):
        missing = "" if find_spec("specdec_openvino") else "install the package specdec-openvino, and "
        return f"It has an OpenVINO export: {missing}use backend='openvino'"
    if any(file.suffix == ".onnx" for file in files):
        return "It has an ONNX export, which specdec doesn't read: give the checkpoint that it was exported from"
    for file in files:
        if file.suffix == ".safetensors" and (fault := _damage(file)):
            return fault
    return _remedy_without_config(folder, files) if lacks_config(folder) else GIVE_A_MODEL


def lacks_config(folder: Path) -> bool:
    """Return True for a folder that has neither a model's configuration nor an adapter's."""
    return folder.is_dir() and not any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG))


def _remedy_without_config(folder: Path, files: Sequence[Path]) -> str:
    if weights := [file.name for file in files if file.suffix == ".safetensors"]:
        return f"Copy the checkpoint's {ADAPTER_CONFIG if weights[0].startswith('adapter') else CONFIG} into it"
    places = [f"{inner}/{name}" for inner in ("*", "snapshots/*") for name in (CONFIG, ADAPTER_CONFIG)]
    checkpoints = [path.parent for place in places for path in folder.glob(place)]
    return f"Give the newest checkpoint in it, {str(max(checkpoints, key=_age))!r}" if checkpoints else GIVE_A_MODEL


def _age(checkpoint: Path) -> tuple[int, float]:
    """Return a key that is greater for a newer checkpoint: a trainer's number of steps, else the time of the folder."""
    step = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(step[1]) if step else -1, checkpoint.stat().st_mtime


def _damage(file: Path) -> str:
    """Return which weight file is damaged, with the remedy; "" if its header agrees with its size."""
    from safetensors import SafetensorError, safe_open

    try:
        with file.open("rb") as opened:
            if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return f"{file.name} is a pointer of Git LFS, without the weights: run git lfs pull in the folder"
        with safe_open(file, framework="numpy"):
            return ""
    except SafetensorError:
        return f"{file.name} is damaged or incomplete: download or copy it again"
    except OSError as error:
        return f"{file.name} can't be read ({error.strerror}): check its permissions, or copy it again"
