"""Applies a GGUF file's scaled rotation, which transformers leaves out, to the configuration that it makes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np  # each command imports this file

HEAD_SIZES = "global_head_dim", "head_dim"
ROTATION_TENSOR = re.compile(r"rope_(factors_(short|long)|freqs)\.weight|.*attn_rot_embd(\.weight)?")
# Values of settings without a counterpart in transformers that change no frequency.
_NO_SCALING: Mapping[str, tuple[object, ...]] = {
    "scaling.alpha": (0.0, 1.0),
    "scaling.yarn_log_multiplier": (0.0,),
    "scaling.yarn_ext_factor": (1.0, -1.0),
    "scaling.attn_factor": (1.0,),
    "scaling.yarn_attn_factor": (1.0,),
}
_SHORT, _LONG, _DIVISORS = "rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight"
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # llama.cpp writes no others
_LLAMA3_LENGTHS = (8192, *(2**power for power in range(10, 21)))


def apply_rotation(config: Any, settings: Mapping[str, Any], names: Sequence[str], path: Path) -> list[str]:
    """Apply the settings and tensors of a file's rotation, and return those that can't be applied.

    Args:
        config: made of the file by transformers.
        settings: the file's, without the family's prefix.
        names: of all tensors in the file.
        path: of the file.
    """
    given = {key.removeprefix("rope."): value for key, value in settings.items() if key.startswith("rope.")}
    tensors = {_SHORT, _LONG, _DIVISORS} & {*names}
    every = getattr(config, "rope_parameters", None)
    if not every:
        return sorted(tensors) + [f"rope.{key} = {shown(value)}" for key, value in _scaling(given).items()]
    full, local = every.get("full_attention", every), every.get("sliding_attention")
    refused = []
    for key, parameters in (("freq_base", full), ("freq_base_swa", local)):
        if key in given and not equal((parameters or full)["rope_theta"], given[key]):
            refused += [] if parameters else [key]
            (parameters or {})["rope_theta"] = given[key]
    refused += _apply_width(config, full, given)
    scaling = _scaling(given)
    if tensors >= {_SHORT, _LONG}:
        scaling = _longrope(given, path)
    elif scaling.get("rope_type") == "longrope":
        refused.append("scaling.type")
    full.update(scaling)
    if "original_max_position_embeddings" in scaling and hasattr(type(config)(), "original_max_position_embeddings"):
        config.original_max_position_embeddings = scaling["original_max_position_embeddings"]
    taken = {"attn_factor", "yarn_attn_factor"} if "attention_factor" in scaling else set()
    refused += [
        key
        for key, harmless in _NO_SCALING.items()
        if key in given
        and key.removeprefix("scaling.") not in taken
        and not any(equal(given[key], it) for it in harmless)
    ]
    wrong = [f"rope.{key} = {shown(given[key])}" for key in refused]
    return wrong + ([] if _DIVISORS not in tensors or _divided(config, full, _tensor(path, _DIVISORS)) else [_DIVISORS])


def equal(one: Any, other: Any) -> bool:
    """Return True for values that are equal in a file's float32."""
    import numpy as np

    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return bool(np.float32(one) == np.float32(other)) if numbers else bool(one == other)


def shown(value: object) -> str:
    """Return a value of a file as its author wrote it, before it was rounded to float32."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def head_size(config: Any) -> int:
    """Return the width of a query of one head; 0 for different ones."""
    heads = getattr(config, "num_attention_heads", None) or 1
    try:
        sizes = [getattr(config, name, None) for name in HEAD_SIZES]
    except RuntimeError:  # of each layer
        return 0
    return next((int(size) for size in sizes if size), config.hidden_size // heads)


def _apply_width(config: Any, parameters: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Apply the number of rotated dimensions, and return the keys that can't be applied."""
    head, width = head_size(config), given.get("dimension_count", 0)
    refused = []
    sections = given.get("dimension_sections")
    if sections is not None:
        found = [*filter(None, sections)] if isinstance(sections, list) else sections
        refused += [] if found == parameters.get("mrope_section") else ["dimension_sections"]
    if head and given.get("dimension_count_swa", 0) not in {0, getattr(config, "head_dim", head)}:
        refused.append("dimension_count_swa")
    if width and head:
        if "partial_rotary_factor" in parameters:
            parameters["partial_rotary_factor"] = width / head
        elif width != head:
            refused.append("dimension_count")
    return refused


def _scaling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return transformers' parameters of a scaled rotation; none for a plain one."""
    factor = given.get("scaling.factor") or given.get("scale_linear") or 1.0
    kind = given.get("scaling.type", "linear")  # llama.cpp's default
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    names = {
        "scaling.original_context_length": "original_max_position_embeddings",
        "scaling.attn_factor": "attention_factor",
        "scaling.yarn_attn_factor": "attention_factor",
        "scaling.yarn_beta_fast": "beta_fast",
        "scaling.yarn_beta_slow": "beta_slow",
    }
    others = {name: given[key] for key, name in names.items() if key in given} if kind == "yarn" else {}
    return {"rope_type": kind, "factor": factor, **others}


def _longrope(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    attention = {"attention_factor": given["scaling.attn_factor"]} if "scaling.attn_factor" in given else {}
    return {
        "rope_type": "longrope",
        "short_factor": _tensor(path, _SHORT).tolist(),
        "long_factor": _tensor(path, _LONG).tolist(),
        "original_max_position_embeddings": given["scaling.original_context_length"],
        **attention,
    }


def _divided(config: Any, parameters: dict[str, Any], divisors: "np.ndarray") -> bool:
    """Divide the frequencies of a rotation as a file's tensor does; False if transformers has no such rotation."""
    import numpy as np

    plain = parameters["rope_theta"] ** (np.arange(len(divisors)) / -len(divisors))
    before = dict(parameters)
    scalings = [{**_LLAMA3, "original_max_position_embeddings": length} for length in _LLAMA3_LENGTHS]
    for scaling in ({}, *scalings):
        parameters.update(scaling, **({"factor": float(divisors.max())} if scaling else {}))
        found = _frequencies(config, parameters)
        if found.shape == plain.shape and np.allclose(found, plain / divisors, rtol=1e-5, atol=1e-12):
            return True
        parameters.clear()
        parameters.update(before)
    return False


def _frequencies(config: Any, parameters: Mapping[str, Any]) -> "np.ndarray":
    """Return transformers' frequencies of a rotation in the configuration."""
    import numpy as np
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = parameters.get("rope_type", "default")
    if kind == "default":
        half = int(head_size(config) * parameters.get("partial_rotary_factor", 1.0)) // 2
        return np.asarray(parameters["rope_theta"] ** (np.arange(half) / -half))
    layer = {} if parameters is config.rope_parameters else {"layer_type": "full_attention"}
    found: np.ndarray = ROPE_INIT_FUNCTIONS[kind](config, **layer)[0].numpy()
    return found


def _tensor(path: Path, name: str) -> "np.ndarray":
    from gguf import GGUFReader, dequantize

    tensor = next(tensor for tensor in GGUFReader(path).tensors if tensor.name == name)
    return dequantize(tensor.data, tensor.tensor_type)
