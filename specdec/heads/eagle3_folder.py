"""Folders of EAGLE-3 heads: published ones are read, and ours are written so that vLLM, SGLang and llama.cpp read them.

Read are the official layout, SpecForge's and ``speculators``', as safetensors or as a ``.bin`` file of plain tensors.
P-EAGLE heads are read in ``speculators``' layout, SpecForge's and AWS's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec.errors import ModelError
from specdec.heads.config import Eagle3Config, PEagleConfig, default_layers
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.files import (
    FILES,
    TargetWeights,
    check_target,
    head_embeddings,
    layer_settings,
    load_tensors,
    read_config,
    read_tensors,
    write_folder,
)
from specdec.heads.kinds import MASK_TOKENS, check_kind
from specdec.heads.p_eagle import PEagleHead
from specdec.heads.settings import (
    check_layers,
    check_settings,
    check_tensors,
    layer_part,
    layers_of,
    understood,
    window_of,
)

ARCHITECTURE = "LlamaForCausalLMEagle3"  # in the configurations of folders that are written
REMEDIES = {
    "eagle3": "give the folder of an EAGLE-3 head that was trained for this model",
    "p_eagle": "give the folder of a P-EAGLE head that was trained for this model",
}
_OLDER_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_DRAFT_FILE = "peagle_config.json"  # SpecForge's, beside config.json
_VARIANTS = "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"


def read_head(folder: Path, target: TargetWeights, dtype: torch.dtype) -> Eagle3Head:
    """Read a head from its folder, for a target, on the target's device.

    Raises:
        ModelError: the folder holds no EAGLE-3 head, or one of another target; with what was found and needed.
    """
    return _read(folder, target, dtype, "eagle3")


def read_p_eagle_head(folder: Path, target: TargetWeights, dtype: torch.dtype) -> PEagleHead:
    """Read a P-EAGLE head; see ``read_head``."""
    head = _read(folder, target, dtype, "p_eagle")
    assert isinstance(head, PEagleHead), "the kind of the folder was checked"
    return head


def _read(folder: Path, target: TargetWeights, dtype: torch.dtype, strategy: str) -> Eagle3Head:
    remedy = REMEDIES[strategy]
    settings = read_config(folder, remedy)
    files = read_tensors(folder, FILES, remedy)
    tensors = {_official_name(name): tensor for name, tensor in files.items()}
    with understood(folder, remedy):
        check_kind(folder, settings, remedy, {strategy}, tensors)
        check_settings(folder, settings, remedy)
        check_tensors(folder, settings, tensors, remedy)
        if strategy == "p_eagle":
            config: Eagle3Config = _p_eagle_config_of(folder, settings, tensors, target.num_layers)
        else:
            _check_one_layer(folder, settings)
            config = Eagle3Config(**_fields_of(settings, tensors, target.num_layers))
        _check_target(folder, config, tensors, target, remedy)
        check_layers(folder, settings, config.target_layers(target.num_layers), remedy)
        head = _empty_head(folder, config, tensors.pop("embed_tokens.weight", None), target, dtype, remedy)
    optional = {"t2d"}
    if config.draft_vocab_size == config.vocab_size:
        if "lm_head.weight" not in tensors:
            tensors["lm_head.weight"], head.logits_map = target.output(), target.logits_map()
        optional.add("d2t")
    load_tensors(folder, head, tensors, remedy, optional)
    _check_vocabulary(folder, head, "t2d" in tensors, remedy)
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
    own = {"embed_tokens.weight": head.embeddings} if head.owns_embeddings else {}
    tensors = head.state_dict() | own
    if not with_output:
        for name in ("lm_head.weight", "d2t", "t2d"):
            del tensors[name]
    write_folder(folder, tensors, _written_config(head.config, num_layers) | (special_tokens or {}))


def _check_one_layer(folder: Path, settings: dict[str, Any]) -> None:
    layers = layer_part(settings).get("num_hidden_layers", 1)
    if layers != 1:
        raise ModelError(
            f"the head in {folder} has {layers} layers, and EAGLE-3 heads of one layer are read: {REMEDIES['eagle3']}"
        )


def _official_name(name: str) -> str:
    name = name.removeprefix("model.")
    if name.startswith("layers.0."):
        return name.replace("layers.0.", "midlayer.", 1)
    older = name.removesuffix(".weight")
    return f"{_OLDER_NORMS[older]}.weight" if older in _OLDER_NORMS else name


def _fields_of(settings: dict[str, Any], tensors: Mapping[str, torch.Tensor], num_target_layers: int) -> dict[str, Any]:
    """Return the configuration's fields; sizes that a file may leave out or have wrong are those of the tensors."""
    layer = layer_part(settings)
    hidden, joined = tensors["fc.weight"].shape
    target_hidden = settings.get("target_hidden_size") or hidden
    return {
        "hidden_size": hidden,
        "target_hidden_size": target_hidden,
        "num_states": joined // target_hidden,
        **layer_settings(layer, tensors),
        "draft_vocab_size": settings.get("draft_vocab_size") or layer["vocab_size"],
        "sliding_window": window_of(layer),
        "layer_ids": layers_of(settings, default_layers(num_target_layers)),
        # vLLM's defaults
        "norm_before_residual": settings.get(
            "norm_before_residual", settings.get("speculators_model_type") == "eagle3"
        ),
        "norm_before_fc": "input_norm.weight" in tensors,
        "fc_norm": "fc_norm.0.weight" in tensors,
        "norm_output": settings.get("norm_output", False),
    }


def _p_eagle_config_of(
    folder: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], num_target_layers: int
) -> PEagleConfig:
    """Return the configuration, and give ``mask_hidden`` the shape that it has here."""
    if "mask_hidden" in tensors:
        tensors["mask_hidden"] = tensors["mask_hidden"].reshape(1, 1, -1)
    if (folder / _DRAFT_FILE).is_file():
        settings = {**json.loads((folder / _DRAFT_FILE).read_text(encoding="utf-8")), **settings}
    token: Any = next((settings[key] for key in MASK_TOKENS if settings.get(key) is not None), None)
    return PEagleConfig(
        **_fields_of(settings, tensors, num_target_layers),
        num_layers=layer_part(settings)["num_hidden_layers"],
        mask_token_id=token,
    )


def _check_target(
    folder: Path, config: Eagle3Config, tensors: dict[str, torch.Tensor], target: TargetWeights, remedy: str
) -> None:
    check_target(folder, config.vocab_size, config.target_hidden_size, target, remedy)
    if "embed_tokens.weight" not in tensors and config.hidden_size != config.target_hidden_size:
        raise ModelError(
            f"the head in {folder} has neither the target's hidden size nor embeddings of its own: {remedy}"
        )
    layers = config.target_layers(target.num_layers)
    if len(layers) != config.num_states or not all(0 <= layer <= target.num_layers for layer in layers):
        raise ModelError(
            f"the head in {folder} reads {config.num_states} states of layers {list(layers)}, and the target has "
            f"{target.num_layers} layers: {remedy}"
        )


def _empty_head(
    folder: Path, config: Eagle3Config, own: torch.Tensor | None, target: TargetWeights, dtype: torch.dtype, remedy: str
) -> Eagle3Head:
    """Return a head with its embeddings, its own or the target's, and without other weights."""
    device = target.embeddings.device
    embeddings = head_embeddings(folder, own, (config.vocab_size, config.hidden_size), target, remedy)
    if isinstance(config, PEagleConfig):
        return PEagleHead(config, embeddings, device, dtype, owns_embeddings=own is not None)
    return Eagle3Head(config, embeddings, device, dtype, owns_embeddings=own is not None)


def _check_vocabulary(folder: Path, head: Eagle3Head, has_map: bool, remedy: str) -> None:
    ids = head.target_ids
    if ids.min() < 0 or ids.max() >= head.config.vocab_size:
        raise ModelError(f"the head in {folder} maps draft tokens beyond the vocabulary (d2t are offsets): {remedy}")
    if not has_map:
        head.set_vocabulary(ids)


def _written_config(config: Eagle3Config, num_layers: int) -> dict[str, Any]:
    """Return a config.json; layer numbers are left out where they are the layout's default, which all readers know."""
    sizes = {
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
        "rope_parameters", "max_position_embeddings", "vocab_size",
    }  # fmt: skip
    settings: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **config.model_dump(include=sizes),
        "rope_theta": config.rope_parameters["rope_theta"],
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "mlp_bias": False,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if config.layer_ids and config.layer_ids != default_layers(num_layers):
        settings[_LAYER_IDS] = list(config.layer_ids)
        settings["eagle_config"] = {_LAYER_IDS: [layer - 1 for layer in config.layer_ids]}  # SGLang counts outputs
    if config.sliding_window is not None:
        settings |= {"layer_types": ["sliding_attention"], "sliding_window": config.sliding_window}
    if config.target_hidden_size != config.hidden_size:
        settings["target_hidden_size"] = config.target_hidden_size
    return settings | {name: True for name in _VARIANTS if getattr(config, name)}
