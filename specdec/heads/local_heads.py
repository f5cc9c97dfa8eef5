"""Heads that were trained on this machine: a folder of specdec's cache folder for each model, by a digest of the model.

The digest is of the model's configuration and of samples of all its tensors in bfloat16, so it is the same for each
dtype, device and engine that the same checkpoint is loaded with, and differs for a fine-tuned or adapted model.

Packed weights take seconds to read, so digests are cached by the model's fingerprint. Without a head of the model's
hidden size neither is computed.
"""

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from specdec.machine.cache_files import Remembered, read, update
from specdec.machine.cache_folder import cache_folder
from specdec.models.fingerprint import fingerprint_of
from specdec.models.weights.layers import is_sharded_tensor
from specdec.models.weights.tensor import PackedWeight

_CONFIG = "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"
_ROWS, _COLUMNS = 32, 16  # of each tensor
_MOST_DIGESTS = 256  # on disk; a model in training has a new fingerprint for each generator


class _Digests(Remembered):
    """Digests of models by fingerprint, the oldest first."""

    digests: dict[str, str]


def head_of(model: object) -> Path | None:
    """Return the folder of the head that was trained here for this very model; None if there is none.

    As long as no head of the model's hidden size was trained here, only folders are looked up.
    """
    try:
        known = {path.parent.name for path in (cache_folder() / "heads").glob("*/config.json") if _may_fit(path, model)}
    except OSError:
        return None
    digest = _cached_digest(model) if known else ""
    return folder_for(digest) if digest in known else None


def local_folders() -> list[Path]:
    """Return the folders of all heads that were trained on this machine, and of text without one, the newest first."""
    try:
        found = [folder for folder in (cache_folder() / "heads").iterdir() if _is_digest(folder)]
        return sorted(found, key=lambda folder: -folder.stat().st_mtime)
    except OSError:
        return []


def folder_for(digest: str) -> Path:
    """Return the folder in which ``head_of`` looks for the head of a model with this digest."""
    return cache_folder() / "heads" / digest


def model_digest(model: object) -> str:
    """Return the digest of a model's configuration and weights; "" if its weights can't be read here.

    Args:
        model: a transformers model, or an object with its ``config`` and the ``folder`` that it was read from.
    """
    text = _text_config(model)
    if text is None:
        return ""
    digest = blake2b(json.dumps([str(getattr(text, name, None)) for name in _CONFIG]).encode(), digest_size=16)
    samples = set[bytes]()  # tied matrices occur once or twice
    for tensor in _tensors(model):
        if is_sharded_tensor(tensor) or tensor.device.type == "meta":
            return ""
        try:
            samples.add(_sample(tensor))
        except (RuntimeError, TypeError):  # a class of quantised tensors that can't be indexed
            return ""
    for sample in sorted(samples):
        digest.update(blake2b(sample, digest_size=16).digest())
    return digest.hexdigest() if samples else ""


def _may_fit(path: Path, model: object) -> bool:
    """Return False if the head with this configuration can't be one that was trained here for the model."""
    if not _is_digest(path.parent):
        return False
    text = _text_config(model)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        return text is not None and bool(settings["hidden_size"] == getattr(text, "hidden_size", None))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return True  # a damaged head is reported to the model that it was trained for


def _is_digest(folder: Path) -> bool:
    return re.fullmatch("[0-9a-f]{32}", folder.name) is not None


def _text_config(model: object) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else None


def _cached_digest(model: object) -> str:
    """Return ``model_digest``, from the cache folder if it is there."""
    fingerprint = fingerprint_of(model)
    if not fingerprint.is_known:
        return model_digest(model)
    key, path = f"{fingerprint.structure} {fingerprint.numbers}", cache_folder() / "heads" / "digests.json"
    held = read(path, _Digests)
    if held is not None and key in held.digests:
        return held.digests[key]
    digest = model_digest(model)

    def added(held: _Digests | None) -> _Digests:
        others = [*(held.digests if held else {}).items()][1 - _MOST_DIGESTS :]
        return _Digests(digests={**dict(others), key: digest})

    if digest:
        update(path, _Digests, added)
    return digest


def _tensors(model: object) -> Iterator[torch.Tensor]:
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            yield parameter.unpacked() if isinstance(parameter, PackedWeight) else parameter.detach()
    elif folder := getattr(model, "folder", None):
        from safetensors import safe_open

        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - no mapping
                    yield file.get_tensor(key)  # mapped into memory


def _sample(tensor: torch.Tensor) -> bytes:
    """Return the shape and some entries from all over a tensor."""
    rows = torch.linspace(0, max(0, len(tensor) - 1), _ROWS).long() if tensor.dim() else torch.zeros(1).long()
    flat = tensor.reshape(len(tensor), -1) if tensor.dim() else tensor.reshape(1, 1)
    columns = torch.linspace(0, max(0, flat.shape[1] - 1), _COLUMNS).long()
    chosen = flat[rows.to(flat.device)[:, None], columns.to(flat.device)] if flat.numel() else flat
    numbers = chosen.to(torch.bfloat16) if chosen.is_floating_point() else chosen
    return f"{tuple(tensor.shape)}".encode() + numbers.cpu().contiguous().view(torch.uint8).numpy().tobytes()
