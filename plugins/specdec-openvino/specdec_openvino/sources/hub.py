"""Exports given by a hub name: found in the hub's cache or on the hub, and fetched."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download

from specdec import ModelError
from specdec.errors import in_one_line
from specdec.models import ModelSource, model_file
from specdec.models.checkpoint_files import CONFIG
from specdec_openvino.sources.export import GRAPH, WEIGHTS, is_export

_FETCHED = GRAPH, WEIGHTS, "*.json", "*.jinja", "*.txt", "*.model"  # not the tokenizer's graphs


def is_name_of_export(source: ModelSource) -> bool:
    """Return True for the folder or hub name of an export without a checkpoint; nothing is fetched."""
    if Path(source.name).exists():
        return is_export(Path(source.name))
    config = model_file(source.name, CONFIG, is_offline=True)
    if config is not None and ((is_exported := is_export(config.parent)) or any(config.parent.glob("*.safetensors"))):
        return is_exported
    return _is_export(source.hub_answer().files)


def fetch_export(name: str, is_offline: bool) -> Path:
    """Return the folder of an export in the hub's cache, with the files that the hub has now unless offline.

    Raises:
        ModelError: if the files can't be fetched, with the reason.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=[*_FETCHED], local_files_only=is_offline))
    except Exception as error:  # of any library that makes the connection, or of the disk
        raise ModelError(
            f"can't fetch OpenVINO's export {name!r} from the hub ({in_one_line(error)}): check the connection and the "
            "disk, or download the repository and give its folder"
        ) from error


def _is_export(files: Sequence[str]) -> bool:
    """Return True for a repository's files if its main folder has an export but no checkpoint."""
    return GRAPH in files and not any(file.endswith(".safetensors") and "/" not in file for file in files)
