"""Folders of EAGLE's first heads, in the official layout, as safetensors or as a ``.bin`` file of plain tensors."""

from pathlib import Path
from typing import Any

import torch

from specdec.errors import ModelError
from specdec.heads.config import EagleConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.files import (
    FILES,
    TargetWeights,
    check_target,
    head_embeddings,
    layer_settings,
    load_tensors,
    read_config,
    read_tensors,
)
from specdec.heads.settings import check_layers, check_settings, understood

REMEDY = "give the folder of an EAGLE head that was trained for this model"


def read_eagle_head(folder: Path, target: TargetWeights, dtype: torch.dtype) -> EagleHead:
    """Read a head from its folder, for a target, on the target's device.

    The output matrix is the target's, unless the folder has one of its own.

    Raises:
        ModelError: the folder holds no head of EAGLE or EAGLE-2, or one of another target; with what was found and
            needed.
    """
    settings = read_config(folder, REMEDY)
    files = read_tensors(folder, FILES, REMEDY)
    tensors = {name.removeprefix("model.").replace("layers.0.", "midlayer."): files[name] for name in files}
    with understood(folder, REMEDY):
        _check_kind(folder, settings, tensors)
        check_settings(folder, settings, REMEDY, has_norms=False)
        check_layers(folder, settings, (target.num_layers,), REMEDY)
        config = _config_of(settings, tensors)
        check_target(folder, config.vocab_size, config.hidden_size, target, REMEDY)
        own, sizes = tensors.pop("embed_tokens.weight", None), (config.vocab_size, config.hidden_size)
        embeddings = head_embeddings(folder, own, sizes, target, REMEDY)
        head = EagleHead(config, embeddings, embeddings.device, dtype)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = target.output()
    load_tensors(folder, head, tensors, REMEDY)
    return head.eval().requires_grad_(False)


def _check_kind(folder: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    if "midlayer.hidden_norm.weight" in tensors:
        raise ModelError(f"{folder} holds an EAGLE-3 head: draft with eagle3:head={folder}")
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1:
        raise ModelError(f"the head in {folder} has {layers} layers, and EAGLE heads have one: {REMEDY}")


def _config_of(settings: dict[str, Any], tensors: dict[str, torch.Tensor]) -> EagleConfig:
    hidden, joined = tensors["fc.weight"].shape
    if joined != 2 * hidden:
        raise ValueError(f"fc.weight of shape {(hidden, joined)}")
    return EagleConfig(
        hidden_size=hidden,
        **layer_settings(settings, tensors),
        draft_vocab_size=settings["vocab_size"],
        bias="fc.bias" in tensors,
        qkv_bias="midlayer.self_attn.q_proj.bias" in tensors,
    )
