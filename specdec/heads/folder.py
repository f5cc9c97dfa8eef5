"""Folders of EAGLE-3 heads: published ones are read, and ours are written so that vLLM, SGLang and llama.cpp read them.

Read are the official layout, SpecForge's and ``speculators``', as safetensors or as a ``.bin`` file of plain tensors.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specdec.errors import ModelError
from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.files import (
    FILES,
    MISUNDERSTOOD,
    TargetWeights,
    check_target,
    layer_settings,
    load_tensors,
    read_config,
    read_tensors,
)

_REMEDY = "give the folder of an EAGLE-3 head that was trained for this model"
_OTHER_KINDS = {"dflash": "DFlash", "dflash2": "DFlash", "dspark": "DSpark", "mtp": "MTP", "peagle": "P-EAGLE"}
_OLDER_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def read_head(folder: Path, target: TargetWeights, dtype: torch.dtype) -> Eagle3Head:
    """Read a head from its folder, for a target, on the target's device.

    Raises:
        ModelError: the folder holds no EAGLE-3 head, or one of another target; with what was found and needed.
    """
    settings = read_config(folder, _REMEDY)
    files = read_tensors(folder, FILES, _REMEDY)
    tensors = {_official_name(name): tensor for name, tensor in files.items()}
    try:
        _check_kind(folder, settings)
        config = _config_of(settings, tensors)
        _check_target(folder, config, tensors, target)
        head = _empty_head(config, tensors.pop("embed_tokens.weight", None), target, dtype)
    except MISUNDERSTOOD as error:
        raise ModelError(
            f"the head in {folder} has an incomplete or unknown configuration ({error}): {_REMEDY}"
        ) from error
    optional = {"t2d"}
    if config.draft_vocab_size == config.vocab_size:
        if "lm_head.weight" not in tensors:
            tensors["lm_head.weight"] = target.output()
        optional.add("d2t")
    load_tensors(folder, head, tensors, _REMEDY, optional)
    _check_vocabulary(folder, head, has_map="t2d" in tensors)
    return head.eval().requires_grad_(False)


def write_head(
    head: Eagle3Head,
    folder: Path,
    num_layers: int,
    special_tokens: dict[str, Any] | None = None,
    with_output: bool = True,
) -> None:
    """Write a head in bfloat16, in the layout that vLLM, SGLang and llama.cpp read.

    Args:
        head: the head; its states aren't scaled.
        folder: created if it doesn't exist.
        num_layers: number of the target's layers.
        special_tokens: ``bos_token_id`` and the like, for the configuration.
        with_output: False leaves out the output matrix and the map of the vocabulary, for a head with the target's own
            output matrix over the full vocabulary; readers then share the target's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = head.state_dict()
    if head.owns_embeddings:
        state["embed_tokens.weight"] = head.embeddings
    tensors = {
        name: tensor.detach().cpu().to(torch.bfloat16 if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in state.items()
        if with_output or name not in ("lm_head.weight", "d2t", "t2d")
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.dumps(_written_config(head.config, num_layers) | (special_tokens or {}), indent=2)
    (folder / "config.json").write_text(settings + "\n", encoding="utf-8")


def _check_kind(folder: Path, settings: dict[str, Any]) -> None:
    kind = settings.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise ModelError(f"{folder} holds a {_OTHER_KINDS.get(kind, kind)} head, which specdec doesn't read: {_REMEDY}")
    layers = settings.get("transformer_layer_config", settings).get("num_hidden_layers", 1)
    if layers != 1:
        raise ModelError(f"the head in {folder} has {layers} layers, and EAGLE-3 heads have one: {_REMEDY}")


def _official_name(name: str) -> str:
    name = name.removeprefix("model.")
    if name.startswith("layers.0."):
        return name.replace("layers.0.", "midlayer.", 1)
    older = name.removesuffix(".weight")
    return f"{_OLDER_NORMS[older]}.weight" if older in _OLDER_NORMS else name


def _config_of(settings: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Eagle3Config:
    """Return the configuration; sizes that a file may leave out or have wrong are those of the tensors."""
    layer = settings.get("transformer_layer_config", settings)
    hidden, joined = tensors["fc.weight"].shape
    layer_ids = settings.get(_LAYER_IDS)
    target_hidden = settings.get("target_hidden_size") or hidden
    return Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_states=joined // target_hidden,
        **layer_settings(layer, tensors),
        draft_vocab_size=settings.get("draft_vocab_size") or layer["vocab_size"],
        layer_ids=layer_ids,
        norm_before_residual=settings.get("norm_before_residual", "speculators_model_type" in settings),
        norm_before_fc="input_norm.weight" in tensors,
        fc_norm="fc_norm.0.weight" in tensors,
        norm_output=settings.get("norm_output", False),
    )


def _check_target(folder: Path, config: Eagle3Config, tensors: dict[str, torch.Tensor], target: TargetWeights) -> None:
    check_target(folder, config.vocab_size, config.target_hidden_size, target, _REMEDY)
    if "embed_tokens.weight" not in tensors and config.hidden_size != config.target_hidden_size:
        raise ModelError(
            f"the head in {folder} has neither the target's hidden size nor embeddings of its own: {_REMEDY}"
        )
    _check_embeddings(folder, config, tensors.get("embed_tokens.weight"))
    layers = config.target_layers(target.num_layers)
    if len(layers) != config.num_states or not all(0 <= layer <= target.num_layers for layer in layers):
        raise ModelError(
            f"the head in {folder} reads {config.num_states} states of layers {list(layers)}, and the target has "
            f"{target.num_layers} layers: {_REMEDY}"
        )


def _check_embeddings(folder: Path, config: Eagle3Config, embeddings: torch.Tensor | None) -> None:
    needed = config.vocab_size, config.hidden_size
    if embeddings is not None and embeddings.shape != needed:
        raise ModelError(
            f"the head in {folder} has embeddings of shape {tuple(embeddings.shape)} (needed: {needed}): {_REMEDY}"
        )


def _empty_head(
    config: Eagle3Config, own: torch.Tensor | None, target: TargetWeights, dtype: torch.dtype
) -> Eagle3Head:
    """Return a head with its embeddings, its own or the target's, and without other weights."""
    device = target.embeddings.device
    embeddings = target.embeddings if own is None else own.to(device)
    return Eagle3Head(config, embeddings, device, dtype, owns_embeddings=own is not None)


def _check_vocabulary(folder: Path, head: Eagle3Head, has_map: bool) -> None:
    ids = head.target_ids
    if ids.min() < 0 or ids.max() >= head.config.vocab_size:
        raise ModelError(f"the head in {folder} maps draft tokens beyond the vocabulary (d2t are offsets): {_REMEDY}")
    if not has_map:
        head.set_vocabulary(ids)


def _written_config(config: Eagle3Config, num_layers: int) -> dict[str, Any]:
    """Return a config.json; layer numbers are left out where they are the layout's default, which all readers know."""
    settings: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **config.model_dump(
            include={
                "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                "rms_norm_eps", "rope_parameters", "max_position_embeddings", "vocab_size", "draft_vocab_size",
            }
        ),
        "rope_theta": config.rope_parameters["rope_theta"],
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    if config.layer_ids and config.layer_ids != (2, num_layers // 2, num_layers - 3):
        settings[_LAYER_IDS] = list(config.layer_ids)
        settings["eagle_config"] = {_LAYER_IDS: [layer - 1 for layer in config.layer_ids]}  # SGLang counts outputs
    if config.target_hidden_size != config.hidden_size:
        settings["target_hidden_size"] = config.target_hidden_size
    variants = "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"
    return settings | {name: True for name in variants if getattr(config, name)}
