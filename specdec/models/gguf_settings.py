"""Applies what a GGUF file says and transformers leaves out; what can't be applied is refused or named.

transformers makes a configuration of a few of a file's keys, and skips all others, and tensors that its model lacks. So
each key of the model is compared with the configuration, and each tensor with the model.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.errors import ModelError
from specdec.models.gguf_header import GgufHeader
from specdec.models.gguf_rotation import HEAD_SIZES, ROTATION_TENSOR, apply_rotation, equal, head_size, shown

_REMEDY = "give the folder or hub name of the safetensors checkpoint that the file was converted from"
# Attributes of a configuration by the key, of which each family has at most one.
_EPSILON = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": HEAD_SIZES,
    "attention.value_length": HEAD_SIZES,
    "attention.key_length_swa": ("head_dim",),
    "attention.value_length_swa": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", *_EPSILON),
    "attention.layer_norm_epsilon": (*_EPSILON, "norm_eps"),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.sliding_window": ("sliding_window",),
    "attention.sliding_window_pattern": ("layer_types",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "use_parallel_residual": ("use_parallel_residual", "parallel_attn"),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts"),
    "expert_shared_count": ("n_shared_experts",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_gating_func": ("scoring_func",),
    "attention.scale": (),
    "attention.causal": (),
    "attention.clamp_kqv": (),
    "attention.max_alibi_bias": (),
    "router_logit_softcapping": (),
}
_GATES = {1: "softmax", 2: "sigmoid"}
# Values that change nothing in a model without the attribute; so does 0, except for numbers of a truth value.
_NEUTRAL: Mapping[str, object] = {
    "attention.causal": True,
    "expert_gating_func": "softmax",
    "expert_weights_scale": 1.0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
}
# Sizes that the shapes of the tensors confirm, and keys that no pass depends on.
_HARMLESS = re.compile(
    r"vocab_size|context_length|embedding_length.*|block_count|(expert_|expert_shared_)?feed_forward_length|"
    r"tensor_data_layout|nextn_predict_layers|full_attention_interval|decoder_start_token_id|pooling_type|"
    r"attention\.relative_buckets_count|ssm\..*|shortconv\..*|rope\.scaling\.finetuned"
)
# Families whose largest model scales attention by its width per head: llama.cpp knows it by the number of layers.
_SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3_text", 62)}
# Tensors of a block after the last layer that predicts the token after the next one; some families count it as a layer.
_AHEAD = re.compile(r"blk\.(\d+)\.nextn\..*")
_GPT2_SPLITS = {"gpt-2", "default", "phi-2", "olmo", "mpt", "jais"}  # pre-tokenizers that split text as GPT-2's


def gguf_config(header: GgufHeader) -> Any:
    """Return the configuration of a file's model, with the settings that transformers leaves out.

    Raises:
        ModelError: a setting can't be applied, with the remedy.
    """
    from transformers import AutoConfig

    path = header.path
    config = AutoConfig.from_pretrained(path.absolute().parent, gguf_file=path.name)
    refused = [
        f"{key} = {shown(value)}"
        for key, value in header.settings.items()
        if key in _ATTRIBUTES and not _applied(config, key, value)
    ]
    refused += apply_rotation(config, header.settings, header.tensors, path)
    _refuse(path, refused)
    ahead = _blocks_ahead(header)
    while config.num_hidden_layers - 1 in ahead:
        config.num_hidden_layers -= 1
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: config.num_hidden_layers]
    if (config.model_type, config.num_hidden_layers) in _SCALED_BY_WIDTH:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    return config


def check_tensors(header: GgufHeader, model: Any, unexpected: Sequence[str]) -> None:
    """Refuse a file with weights that its loaded model lacks; ``unexpected`` are those that transformers reports.

    Those that only draft are left out: the model's own text doesn't depend on them.

    Raises:
        ModelError: with the names of the weights and the remedy.
    """
    from transformers import modeling_gguf_pytorch_utils as reader
    from transformers.integrations.gguf import GGUF_ARCHS

    ahead = [f"blk.{block}." for block in _blocks_ahead(header) if block >= model.config.num_hidden_layers]
    stored = [
        name
        for name in header.tensors
        if not (ROTATION_TENSOR.fullmatch(name) or _AHEAD.fullmatch(name) or name.startswith(tuple(ahead)))
    ]
    if header.architecture not in GGUF_ARCHS and len(stored) > sum(1 for _ in model.parameters()):
        kind = reader.TENSOR_PROCESSORS.get(header.architecture, reader.TensorProcessor)
        known = reader.get_gguf_hf_weights_map(model, kind(config={}))  # takes seconds
        unexpected = [name for name in stored if not {name, name.removesuffix(".weight")} & known.keys()]
    _refuse(header.path, [*unexpected][:3], f" ({len(unexpected)} in all)" if len(unexpected) > 3 else "")


def adapted_tokenizer(path: Path, tokenizer: Any) -> Any:
    """Return a file's tokenizer with its ends of turns and messages, and no space before a text if the file says so."""
    from transformers import LlamaTokenizer

    named = GgufHeader.of(path).tokenizer
    for attribute in ("eot_token_id", "eom_token_id"):
        if (token := named.get(f"ggml.{attribute}")) is not None:
            setattr(tokenizer, attribute, token)  # as the ids that transformers reads itself
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    adds_space = getattr(getattr(backend, "pre_tokenizer", None), "prepend_scheme", "never") != "never"
    if adds_space and not named.get("ggml.add_space_prefix", True):
        without = LlamaTokenizer(add_prefix_space=False).backend_tokenizer
        backend.pre_tokenizer, backend.decoder = without.pre_tokenizer, without.decoder
    return tokenizer


def remark_on(path: Path) -> str:
    """Return what of a file is unknown, and so was left out; "" if nothing."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    header = GgufHeader.of(path)
    unknown = [
        f"{header.architecture}.{key}"
        for key in header.settings
        if key not in _ATTRIBUTES and not key.startswith("rope.") and not _HARMLESS.fullmatch(key)
    ]
    remarks = [f"its keys {', '.join(unknown)} are unknown, and were left out"] if unknown else []
    split = header.tokenizer.get("ggml.pre", "default")
    if header.tokenizer.get("ggml.model") == "gpt2" and split not in {*GGUF_PRE_TOKENIZER_SPLITS, *_GPT2_SPLITS}:
        remarks.append(
            f"transformers doesn't know its pre-tokenizer {split!r} and splits text as GPT-2's, which may make other "
            "tokens of a prompt: pass the model's own tokenizer"
        )
    return "; ".join(remarks)


def _blocks_ahead(header: GgufHeader) -> set[int]:
    return {int(match[1]) for match in map(_AHEAD.fullmatch, header.tensors) if match}


def _refuse(path: Path, names: Sequence[str], more: str = "") -> None:
    if names:
        raise ModelError(
            f"can't load {str(path)!r}: transformers' model has no place for {', '.join(names)}{more}, without which "
            f"the text would be another model's: {_REMEDY}"
        )


def _applied(config: Any, key: str, value: Any) -> bool:
    """Apply a setting, unless it is in the configuration already; False if the model has no such setting."""
    if key == "attention.sliding_window_pattern" and isinstance(value, list):
        value = ["sliding_attention" if is_local else "full_attention" for is_local in value]
    elif isinstance(value, list):  # of each layer
        value = max(value)
    elif key == "expert_gating_func":
        value = _GATES.get(value, value)
    declared = type(config)()
    names = _ATTRIBUTES[key]
    try:
        name = next((name for name in names if hasattr(declared, name)), "")
        is_read = any(equal(getattr(config, name, None), value) for name in names)
    except RuntimeError:  # a size of each layer, which the shapes of its tensors confirm
        return True
    if key == "attention.sliding_window" and not (name and _is_windowed(config, value)):
        return bool(value == 0 or value >= config.max_position_embeddings)
    if name and not is_read:
        setattr(config, name, value or None if name == "sliding_window" else value)
    if name or is_read or _HARMLESS.fullmatch(key):
        return True
    size = head_size(config)
    neutral = {
        **_NEUTRAL,
        "attention.head_count_kv": getattr(config, "num_attention_heads", 0),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.scale": (size or 1) ** -0.5,
    }
    return (value == 0 and type(value) is not bool) or (key in neutral and equal(value, neutral[key]))


def _is_windowed(config: Any, window: int) -> bool:
    """Return True if a window in the configuration is that of its layers, or there is none."""
    kinds = getattr(config, "layer_types", None)
    return window == 0 or ("sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True))
