"""Keys of heads' configurations: each is read, harmless, refused because the head computes otherwise, or named."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from typing import Any

from specdec.errors import ModelError

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_NESTED = "transformer_layer_config", "model", "eagle_config", "dflash_config"
# Values with which a head computes what specdec computes; null is always one of them.
_COMPUTED: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("hidden_act", "hidden_activation"), ("silu", "swish")),
    **dict.fromkeys(
        ("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier", "scale_emb"), (1,)
    ),
    **dict.fromkeys(("attention_multiplier", "query_pre_attn_scalar", "scale_depth", "dim_model_base"), ()),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "attention_chunk_size"), ()),
    **dict.fromkeys(("quantization_config", "compression_config"), ({},)),
    "add_swa_attention_sink_bias": (False,),
    "additional_fc": (False,),
    "attention_sink_bias": (False,),
    "attention_value_scale": (1,),
    "attn_temperature_tuning": (False,),
    "input_embedding_scale": (1,),
    "is_causal": (True,),
    "is_neox_style": (True,),
    "layernorms": (False,),
    "mlp_bias": (False,),
    "output_multiplier": (1,),
    "parallel_draft_step": (1,),
    "partial_rotary_factor": (1,),
    "position_embedding_type": ("rope",),
    "pure_draft_prefix_len": (0,),
    "qk_layernorm": (False,),
    "shift_label": (False,),
    "use_bidirectional_attention": (False,),
    "use_mtp_layernorm": (False,),
    "use_qk_norm": (False,),
}
# Those of EAGLE-3's layer, which the first EAGLE's has not.
_NORMED = "use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"
# Ids of the target's layers, the first that is given first, by what is to be added for transformers' numbers of hidden
# states. Of the default's layers, the latter are meant where both may be.
_IDS: Mapping[str, tuple[int, ...]] = {
    _LAYER_IDS: (0,),
    "aux_hidden_state_layer_ids": (0,),
    "target_layer_ids": (1,),
    f"eagle_config.{_LAYER_IDS}": (1, 0),  # SpecForge and SGLang count outputs of layers, vLLM hidden states
    "layer_ids": (0,),
    "eagle_config.layer_ids": (1, 0),
}
_CERTAIN = [*_IDS][:4]
# Ends of the tensors that a head has if a key is true.
_PROMISED = {
    "attention_bias": "q_proj.bias", "norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight",
    **dict.fromkeys(("bias", "eagle_fc_bias", "fusion_bias"), "fc.bias"),
}  # fmt: skip
_ROTATION = {
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim", "truncate",
    "mrope_section", "mrope_interleaved",  # of images: a text's three positions are equal
}  # fmt: skip
# Read, confirmed by the tensors, checked elsewhere, or without effect on a pass.
_KNOWN = re.compile(
    r"_.*|.*dropout.*|.*_token(_id)?|(torch_)?dtype|architectures|model_type|target_model_type|auto_map|modal_type|"
    r"transformers_version|speculators_.*|(base_model_)?name_or_path|version|initializer_range|use_cache|"
    r"pretraining_tp|tie_word_embeddings|is_encoder_decoder|has_no_defaults_at_init|output_(attentions|hidden_states)|return_dict|"
    r"(target_|draft_)?hidden_size|intermediate_size|head_dim|num_attention_heads|num_key_value_heads|"
    r"num_hidden_layers|(target_|draft_|truncated_|hot_)?vocab_size|rms_norm_eps|max_position_embeddings|"
    r"rope_(theta|scaling|parameters)|attention_bias|mlp_bias|qkv_bias|bias|eagle_fc_bias|fusion_bias|norm_before_(residual|fc)|"
    r"fc_norm|norm_output|embed_requires_grad|reuse_target_lm_head|has_lm_head|original_lm_head|medusa_.*|num_heads|"
    r"sliding_window|use_sliding_window|max_window_layers|layer_types|(num_local_)?experts(_per_token)?|"
    r"parallel_draft_heads_num_layers|parallel_drafting|num_aux_hidden_states|num_depths|down_sample_ratio(_min)?|num_draft_layers|(target_|aux_hidden_state_)?layer_ids|"
    rf"{_LAYER_IDS}|transformer_layer_(config|architecture)|model|eagle_config|dflash_config|"
    r"block_size|causal|confidence_head_with_markov|enable_confidence_head|"
    r"markov_(rank|head_type)|max_anchors|num_(anchors|target_layers)|"
    r"sample_from_anchor|sliding_window_non_causal|swa_window_size|use_swa"
)
_FREE_WINDOW = "llama", "qwen2", "qwen3"  # families whose layers have a window only if another key says so


def check_settings(
    folder: Path, settings: object, remedy: str, has_norms: bool = True, read: Collection[str] = ()
) -> None:
    """Refuse a configuration with values that make a head compute something else than specdec's heads.

    Args:
        folder: the head's.
        settings: of its ``config.json``; what isn't an object is refused by the reader.
        remedy: of the error.
        has_norms: False for the first EAGLE's heads.
        read: keys that the head's own reader takes at any value, with the objects that they lie in.

    Raises:
        ModelError: with the first such key and its value.
    """
    for place, values in _parts(settings):
        computed = {**_COMPUTED, **_usual_scales(values), **dict.fromkeys(_NORMED, (has_norms,))}
        wrong = [key for key in values if key in computed and not _is_one_of(values[key], computed[key])]
        if (window := _window(values)) is not None:
            wrong.append(window)
        wrong = [key for key in wrong if f"{place}{key}" not in read]
        if wrong:
            refuse(folder, f"{place}{wrong[0]}", values[wrong[0]], remedy)
        for key, rotation in _rotations(values):
            for name, value in rotation.items():
                if isinstance(value, Mapping) or (name in _COMPUTED and not _is_one_of(value, _COMPUTED[name])):
                    refuse(folder, f"{place}{key}.{name}", value, remedy)


def layer_part(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the layer, which some layouts have in an object of their own."""
    part: Mapping[str, Any] = next((settings[key] for key in _NESTED[:2] if key in settings), settings)
    return part


def window_of(settings: Mapping[str, Any]) -> int | None:
    """Return the number of pairs that a layer attends to, if a configuration says that all its layers have a window."""
    return settings.get("sliding_window") if {*(settings.get("layer_types") or ())} == {"sliding_attention"} else None


def layers_of(settings: Mapping[str, Any], default: Sequence[int]) -> tuple[int, ...] | None:
    """Return the target's layers that a head reads, numbered as transformers' ``hidden_states``.

    Args:
        settings: of the head's ``config.json``.
        default: the layers without any ids.

    Returns:
        None for the default.
    """
    for key in _CERTAIN:
        place, _, name = key.rpartition(".")
        if ids := (settings.get(place) or {} if place else settings).get(name):
            found = [tuple(number + more for number in ids) for more in _IDS[key]]
            return None if tuple(default) in found and key != _LAYER_IDS else found[0]
    return None


def check_tensors(folder: Path, settings: Mapping[str, Any], names: Collection[str], remedy: str) -> None:
    """Refuse a configuration that promises norms or biases that a head's tensors lack.

    Args:
        folder, settings, remedy: as for ``check_settings``.
        names: of the tensors.

    Raises:
        ModelError: with the key.
    """
    for place, values in _parts(settings):
        for key, end in _PROMISED.items():
            if values.get(key) and not any(name.endswith(end) for name in names):
                refuse(folder, f"{place}{key}", values[key], f"its tensors lack {end}: {remedy}")


def check_layers(folder: Path, settings: Mapping[str, Any], layers: Sequence[int], remedy: str) -> None:
    """Refuse ids of other layers than those whose hidden states a head reads here.

    Args:
        folder: the head's.
        settings: of its ``config.json``.
        layers: those that are read, numbered as transformers' ``hidden_states``.
        remedy: of the error.

    Raises:
        ModelError: with the key and its value.
    """
    for place, values in _parts(settings):
        for key, numbers in _IDS.items():
            ids = values.get(key.removeprefix(place)) if key.startswith(place) else None
            if ids and not any([number + more for number in ids] == [*layers] for more in numbers):
                where = f"name the right ones in {_LAYER_IDS}, at the top of config.json and numbered as transformers'"
                here = f"the head reads layers {[*layers]} here; {where} hidden_states, or {remedy}"
                refuse(folder, key, ids, here)


def notes_on_settings(folder: Path) -> tuple[str, ...]:
    """Return the note on keys of a head's configuration that are unknown, and were left out, if there are any."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()  # Medusa's heads need none
    unknown = [
        f"{place}{key}"
        for place, values in _parts(settings)
        for key, value in values.items()
        if value is not None and key not in {*_COMPUTED, *_NORMED} and not _KNOWN.fullmatch(key)
    ]
    unknown += [
        f"{place}{key}.{name}"
        for place, values in _parts(settings)
        for key, rotation in _rotations(values)
        for name in rotation
        if name not in {*_ROTATION, *_COMPUTED}
    ]
    return (f"the head's configuration has unknown keys, which were left out: {', '.join(unknown)}",) if unknown else ()


def refuse(folder: Path, key: str, value: object, remedy: str) -> None:
    """Raise the error for a key whose value a head doesn't honour here."""
    raise ModelError(
        f"the head in {folder} has {key} = {json.dumps(value)}, which specdec's heads don't compute: {remedy}"
    )


@contextmanager
def understood(folder: Path, remedy: str) -> Iterator[None]:
    """Turn what a value of a wrong type, or a missing or impossible one, brings up into an error of the boundary.

    Raises:
        ModelError: with the reason and the remedy.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelError(
            f"the head in {folder} has an incomplete or unknown configuration ({error}): {remedy}"
        ) from error


def _parts(settings: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a configuration whose keys are checked, with the prefix of their names."""
    if isinstance(settings, Mapping):
        yield "", settings
        yield from ((f"{name}.", settings[name]) for name in _NESTED if isinstance(settings.get(name), Mapping))


def _rotations(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(rotation := values.get(key), Mapping):
            yield key, rotation


def _usual_scales(values: Mapping[str, Any]) -> dict[str, tuple[object, ...]]:
    """Return the scales of attention that are one divided by the root of a head's width."""
    heads = values.get("num_attention_heads")
    size = values.get("head_dim") or (heads and (values.get("hidden_size") or 0) / heads)
    return {"query_pre_attn_scalar": (size,), "attention_multiplier": (size**-0.5,)} if size else {}


def _is_one_of(value: object, computed: Sequence[object]) -> bool:
    """Return True for null, for a value in any case of letters, and for a number that was rounded as it was written."""
    if isinstance(value, str):
        value = value.lower()
    if isinstance(value, float) and any(isinstance(each, int | float) and isclose(value, each) for each in computed):
        return True
    return value in (None, *computed)


def _window(values: Mapping[str, Any]) -> str | None:
    """Return the key by which a head's layers attend to a window of the text alone, if they do."""
    if {*(values.get("layer_types") or ())} - {"full_attention"} and not window_of(values):
        return "layer_types"
    size = values.get("sliding_window")
    if not size or size >= (values.get("max_position_embeddings") or size + 1):
        return None
    is_used = values.get("use_sliding_window", values.get("model_type", "llama") not in _FREE_WINDOW)
    return "sliding_window" if is_used and not values.get("layer_types") else None
