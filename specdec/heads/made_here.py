"""Heads that were trained on this machine: a folder of specdec's cache folder for each model, by a digest of the model.

The digest is of the model's configuration and of samples of all its tensors in bfloat16, so it is the same for each
dtype, device and engine that the same checkpoint is loaded with, and differs for a fine-tuned or adapted model.
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import torch

from specdec.machine.cache_folder import cache_folder
from specdec.weights.sharding import is_sharded_tensor
from specdec.weights.tensor import PackedWeight

_CONFIG = "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"
_ROWS, _COLUMNS = 32, 16  # of each tensor


def head_of(model: object) -> Path | None:
    """Return the folder of the head that was trained here for this very model; None if there is none.

    As long as no head was trained here, only a folder is looked up.
    """
    try:
        known = {path.parent.name for path in (cache_folder() / "heads").glob("*/config.json")}
    except OSError:
        return None
    digest = model_digest(model) if known else ""
    return cache_folder() / "heads" / digest if digest in known else None


def folder_for(digest: str) -> Path:
    """Return the folder in which ``head_of`` looks for the head of a model with this digest."""
    return cache_folder() / "heads" / digest


def model_digest(model: object) -> str:
    """Return the digest of a model's configuration and weights; "" if its weights can't be read here.

    Args:
        model: a transformers model, or an object with its ``config`` and the ``folder`` that it was read from.
    """
    config = getattr(model, "config", None)
    if config is None:
        return ""
    text = config.get_text_config()
    digest = blake2b(json.dumps([str(getattr(text, name, None)) for name in _CONFIG]).encode(), digest_size=16)
    samples = set[bytes]()  # tied matrices occur once or twice
    for tensor in _tensors(model):
        if is_sharded_tensor(tensor) or tensor.device.type == "meta":
            return ""
        samples.add(_sample(tensor))
    for sample in sorted(samples):
        digest.update(blake2b(sample, digest_size=16).digest())
    return digest.hexdigest() if samples else ""


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
