"""Wider models that say what the built-in model says: a larger model's step costs, with a trained model's text.

The residual stream's extra dimensions are always zero, so weights that read them may hold anything. Weights that would
write them, or write from an extra head, neuron or layer, are zero. A norm over more dimensions is corrected in its
weights and epsilon, exactly if the width is 4 or 16 times the old one; at other widths, and where a group of heads is
split, sums round differently.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import demo

_MADE = Path(__file__).parents[1] / "build" / "widened"
SHAPES: dict[str, dict[str, int]] = {
    "0.3b": {
        "hidden_size": 1536,
        "num_layers": 12,
        "num_heads": 24,
        "num_key_value_heads": 8,
        "intermediate_size": 4096,
    },
    "1b": {
        "hidden_size": 1536,
        "num_layers": 22,
        "num_heads": 24,
        "num_key_value_heads": 4,
        "intermediate_size": 8960,
    },
}


def widen(
    model: Any,
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    num_key_value_heads: int,
    intermediate_size: int,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A larger Llama with the logits of ``model``, in its dtype; dead weights are drawn as for a new model.

    Raises:
        ValueError: for a shape that the model doesn't fit into.
    """
    old = model.config
    wider = {
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_key_value_heads,
        "intermediate_size": intermediate_size,
        "head_dim": old.head_dim,
        "rms_norm_eps": old.rms_norm_eps * old.hidden_size / hidden_size,
        "widened_from": str(model.name_or_path),
    }
    for name in ("hidden_size", "num_hidden_layers", "intermediate_size"):
        if wider[name] < getattr(old, name):
            raise ValueError(f"{name}={wider[name]}: the model has {getattr(old, name)}")
    places = head_places(old.num_attention_heads, old.num_key_value_heads, num_heads, num_key_value_heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wide = LlamaForCausalLM._from_config(LlamaConfig(**{**old.to_dict(), **wider}), dtype=model.dtype).eval()
    wide.generation_config = model.generation_config
    with torch.no_grad():
        _set_columns(wide.model.embed_tokens.weight, model.model.embed_tokens.weight)
        if not old.tie_word_embeddings:
            wide.lm_head.weight[:, : old.hidden_size] = model.lm_head.weight
        _set_norm(wide.model.norm, model.model.norm)
        for layer in wide.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for layer, original in zip(wide.model.layers, model.model.layers, strict=False):
            _set_layer(layer, original, places)
    return wide


def head_places(
    num_old: int, num_old_key_value: int, num_heads: int, num_key_value_heads: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return where the original heads go: each one's new index, and pairs of a new key-value head and its original.

    A group of query heads that is larger than a new one is spread over several copies of its key-value head.
    """
    old_group, group = num_old // num_old_key_value, num_heads // num_key_value_heads
    heads: list[int] = []
    copies: list[tuple[int, int]] = []
    for original in range(num_old_key_value):
        for start in range(0, old_group, group):
            new = len(copies)
            copies.append((new, original))
            heads += range(new * group, new * group + min(group, old_group - start))
    if num_heads % num_key_value_heads or len(copies) > num_key_value_heads:
        raise ValueError(
            f"{num_heads} heads over {num_key_value_heads}: no room for {num_old} over {num_old_key_value}"
        )
    return heads, copies


def _set_columns(wide: torch.Tensor, original: torch.Tensor) -> None:
    """The original columns, padded with zeros. Shape ``(rows, hidden)``."""
    wide.zero_()
    wide[:, : original.shape[1]] = original


def _set_norm(wide: Any, original: Any) -> None:
    size = original.weight.shape[0]
    wide.weight[:size] = original.weight * math.sqrt(size / wide.weight.shape[0])


def _set_layer(wide: Any, original: Any, places: tuple[list[int], list[tuple[int, int]]]) -> None:
    """Write a layer's weights into the live corner; output projections are zero so far."""
    heads, copies = places
    _set_norm(wide.input_layernorm, original.input_layernorm)
    _set_norm(wide.post_attention_layernorm, original.post_attention_layernorm)
    size, dim = original.self_attn.o_proj.weight.shape[0], wide.self_attn.head_dim
    for old, new in enumerate(heads):
        ours, theirs = slice(new * dim, (new + 1) * dim), slice(old * dim, (old + 1) * dim)
        wide.self_attn.q_proj.weight[ours, :size] = original.self_attn.q_proj.weight[theirs]
        wide.self_attn.o_proj.weight[:size, ours] = original.self_attn.o_proj.weight[:, theirs]
    for new, old in copies:
        ours, theirs = slice(new * dim, (new + 1) * dim), slice(old * dim, (old + 1) * dim)
        wide.self_attn.k_proj.weight[ours, :size] = original.self_attn.k_proj.weight[theirs]
        wide.self_attn.v_proj.weight[ours, :size] = original.self_attn.v_proj.weight[theirs]
    neurons = original.mlp.gate_proj.weight.shape[0]
    wide.mlp.gate_proj.weight[:neurons, :size] = original.mlp.gate_proj.weight
    wide.mlp.up_proj.weight[:neurons, :size] = original.mlp.up_proj.weight
    wide.mlp.down_proj.weight[:size, :neurons] = original.mlp.down_proj.weight


def checkpoint(shape: str, dtype: str) -> Path:
    """The folder of the built-in model, widened, with its tokenizer; made in ``build/widened/`` if there is none."""
    folder = _MADE / f"{shape}-{dtype}"
    if not folder.exists():
        _MADE.mkdir(parents=True, exist_ok=True)
        model, tokenizer = demo.load(dtype=dtype)
        with tempfile.TemporaryDirectory(dir=_MADE) as unfinished:
            made = Path(unfinished, "model")
            save(widen(model, **SHAPES[shape]), tokenizer, made)
            made.rename(folder)
    return folder


def save(wide: Any, tokenizer: Any, folder: Path) -> None:
    """Write a widened model, its tokenizer and a page about it."""
    wide.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(
        f"# A widened model\n\n{wide.num_parameters():,} parameters that say what {wide.config.widened_from} says, "
        "made by `python -m benchmarks widened`.\nIts step costs are a real model's; its text, and so every "
        "acceptance, is the small one's.\n"
    )
