"""Folders of EAGLE-3 heads: published ones are read, and ours are written so that vLLM, SGLang and llama.cpp read them.

Read are the official layout, SpecForge's and ``speculators``', as safetensors or as a ``.bin`` file of plain tensors.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from specdec.errors import ModelError
from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.files import FILES, read_config, read_tensors

_REMEDY = "give the folder of an EAGLE-3 head that was trained for this model"
_OTHER_KINDS = {"dflash": "DFlash", "dflash2": "DFlash", "dspark": "DSpark", "mtp": "MTP", "peagle": "P-EAGLE"}
_OLDER_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
# What a value of a wrong type, or a missing or impossible one, brings up.
_MISUNDERSTOOD = ValidationError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """The weights that a head shares with its target.

    Attributes:
        embeddings: (vocab, hidden), the input embeddings.
        output: returns the output matrix, (vocab, hidden), for heads without one of their own.
        num_layers: number of the target's layers.
    """

    embeddings: torch.Tensor
    output: Callable[[], torch.Tensor]
    num_layers: int


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
    except _MISUNDERSTOOD as error:
        raise ModelError(
            f"the head in {folder} has an incomplete or unknown configuration ({error}): {_REMEDY}"
        ) from error
    optional = {"t2d"}
    if config.draft_vocab_size == config.vocab_size:
        if "lm_head.weight" not in tensors:
            tensors["lm_head.weight"] = target.output()
        optional.add("d2t")
    missing = sorted(head.state_dict().keys() - tensors.keys() - optional)
    extra = sorted(tensors.keys() - head.state_dict().keys())
    if missing or extra:
        raise ModelError(
            f"the head in {folder} lacks {missing or 'nothing'} and has unknown tensors {extra or 'none'}: {_REMEDY}"
        )
    _load(folder, head, tensors)
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
    rope = layer.get("rope_parameters") or {"rope_type": "default", **(layer.get("rope_scaling") or {})}
    return Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_states=joined // target_hidden,
        intermediate_size=len(tensors["midlayer.mlp.gate_proj.weight"]),
        num_attention_heads=layer["num_attention_heads"],
        num_key_value_heads=layer.get("num_key_value_heads", layer["num_attention_heads"]),
        head_dim=len(tensors["midlayer.self_attn.q_proj.weight"]) // layer["num_attention_heads"],
        vocab_size=layer["vocab_size"],
        draft_vocab_size=settings.get("draft_vocab_size") or layer["vocab_size"],
        rms_norm_eps=layer.get("rms_norm_eps", 1e-6),
        rope_parameters={"rope_theta": layer.get("rope_theta", 10000.0), **rope},
        max_position_embeddings=layer.get("max_position_embeddings", 2048),
        layer_ids=layer_ids,
        norm_before_residual=settings.get("norm_before_residual", "speculators_model_type" in settings),
        norm_before_fc="input_norm.weight" in tensors,
        fc_norm="fc_norm.0.weight" in tensors,
        norm_output=settings.get("norm_output", False),
    )


def _check_target(folder: Path, config: Eagle3Config, tensors: dict[str, torch.Tensor], target: TargetWeights) -> None:
    vocab, hidden = target.embeddings.shape
    needed = {"vocabulary": vocab, "hidden size": hidden}
    found = {"vocabulary": config.vocab_size, "hidden size": config.target_hidden_size}
    if needed != found:
        differs = ", ".join(
            f"{name} {found[name]} (the target has {needed[name]})" for name in needed if needed[name] != found[name]
        )
        raise ModelError(f"the head in {folder} was trained for another model, of {differs}: {_REMEDY}")
    if "embed_tokens.weight" not in tensors and config.hidden_size != hidden:
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


def _load(folder: Path, head: Eagle3Head, tensors: dict[str, torch.Tensor]) -> None:
    wrong = {
        name: (tuple(tensors[name].shape), tuple(expected.shape))
        for name, expected in head.state_dict().items()
        if name in tensors and tensors[name].shape != expected.shape
    }
    if wrong:
        listed = ", ".join(f"{name} {found} (needed: {needed})" for name, (found, needed) in wrong.items())
        raise ModelError(f"the head in {folder} has tensors of other shapes: {listed}. {_REMEDY.capitalize()}")
    head.load_state_dict(tensors, strict=False)
    ids = head.target_ids
    if ids.min() < 0 or ids.max() >= head.config.vocab_size:
        raise ModelError(f"the head in {folder} maps draft tokens beyond the vocabulary (d2t are offsets): {_REMEDY}")
    if "t2d" not in tensors:
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
