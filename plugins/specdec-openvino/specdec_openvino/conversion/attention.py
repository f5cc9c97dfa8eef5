"""Paged attention: the operation that replaces attention while a model is traced, and its translation to OpenVINO.

A pass has the nodes of all its rows in order, (tokens, 1). Each row's keys and values are in blocks of 32 slots, which
OpenVINO's ``PagedAttentionExtension`` writes and reads by the row's block table. A matrix (``qq_bias``, made for draft
trees) defines which nodes of a row see each other; without it they are a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino.frontend.pytorch import ConversionExtension
from openvino.op import _PagedAttentionExtension
from transformers import AttentionInterface, AttentionMaskInterface

from specdec import ModelError

NAME = "specdec_openvino"
_LIBRARY = "specdec_openvino"
_OPERATION = "paged_attention"
# The rows of a pass: committed tokens, first nodes, blocks, first blocks, longest row, visibility, its offsets.
ROWS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "max_context_len", "qq_bias",
        "qq_bias_begins")  # fmt: skip
_I32, _F32 = np.int32, np.float32


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer: heads of keys and values, their widths, and the window size (0: no window)."""

    heads: int
    key_width: int
    value_width: int
    window: int


@dataclass(slots=True)
class Tracing:
    """The inputs of a pass while a model is traced, and the attention layers called so far, in order."""

    caches: Sequence[torch.Tensor] = ()
    rows: Sequence[torch.Tensor] = ()
    layers: list[LayerShape] = field(default_factory=list)

    def attention(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **given: Any
    ) -> tuple[torch.Tensor, None]:
        """Trace the attention of one layer; return it as transformers' functions do, (tokens, 1, heads, width).

        Raises:
            ModelError: if paged attention doesn't support it.
        """
        if given.get("softcap") is not None:
            raise ModelError("its attention has soft caps, which OpenVINO's paged attention doesn't support")
        window = given.get("sliding_window") or 0
        number = len(self.layers)
        # Sizes are tensors while torch traces.
        heads, *shape = map(int, (query.shape[1], key.shape[1], key.shape[3], value.shape[3]))
        self.layers.append(LayerShape(*shape, window))
        scaling = given.get("scaling")
        scale = int(query.shape[-1]) ** -0.5 if scaling is None else float(scaling)
        keys, values = self.caches[2 * number : 2 * number + 2]
        sinks = given.get("s_aux")
        sinks = query.new_zeros(0) if sinks is None else sinks
        attended = torch.ops.specdec_openvino.paged_attention(
            query, key, value, keys, values, *self.rows, sinks, scale, [int(window), heads, *shape]
        )
        return attended, None


def register(tracing: Tracing) -> None:
    """Register a tracing's attention with transformers as ``NAME``, without masks."""
    AttentionInterface.register(NAME, tracing.attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask, since rows and their visibility are inputs of the pass."""


def define() -> torch.library.Library:
    """Define the operation that represents attention in a traced graph, as long as the returned library exists."""
    library = torch.library.Library(_LIBRARY, "FRAGMENT")
    rows = ", ".join(f"Tensor {name}" for name in ROWS)
    library.define(
        f"{_OPERATION}(Tensor query, Tensor key, Tensor value, Tensor keys, Tensor values, {rows}, Tensor sinks, "
        "float scale, int[] facts) -> Tensor"
    )

    def stand_in(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])

    library.impl(_OPERATION, stand_in, "CPU")
    return library


def extension() -> ConversionExtension:
    """Return the translation of that operation to OpenVINO's."""
    return ConversionExtension(f"{_LIBRARY}::{_OPERATION}", _translated)


def _translated(node: Any) -> list[ov.Output]:
    num_tensors = 5 + len(ROWS) + 1
    query, key, value, keys, values, *rows, sinks = map(node.get_input, range(num_tensors))
    scale, facts = map(node.get_values_from_const_input, range(num_tensors, num_tensors + 2))
    window, heads, kv_heads, key_width, value_width = facts
    past, begins, blocks, block_begins, longest, visible, visible_begins = rows
    nothing, zero = _constant([], _I32), _constant(0, _I32)
    inputs = [
        _by_token(query, heads * key_width), _by_token(key, kv_heads * key_width),
        _by_token(value, kv_heads * value_width), keys, values, past, begins, blocks, block_begins,
        _constant(scale, _F32), _constant(window, _I32),
        _constant([], _F32),  # slopes by position
        longest,
        nothing,  # scores to be summed
        nothing, nothing, _constant([], _F32),  # blocks rotated to other positions
        _constant([], _F32), zero, zero,  # sparse attention
        _sinks(sinks, heads),
        zero, nothing, nothing, nothing,  # blocks to be evicted
        nothing,  # kinds of tokens
        visible, visible_begins,
    ]  # fmt: skip
    attended = _PagedAttentionExtension([each if isinstance(each, ov.Output) else each.output(0) for each in inputs])
    return ops.reshape(attended.output(0), _constant([-1, 1, heads, value_width], np.int64), False).outputs()


def describe(graph: ov.Model, layers: Sequence[LayerShape]) -> None:
    """Set the heads and widths of a graph's attention, which files don't store; caches are ``keys.0``, ``keys.1``, …"""
    for node in graph.get_ops():
        if node.get_type_name() == _PagedAttentionExtension.__name__.removeprefix("_"):
            layer = layers[int(node.input_value(3).get_node().get_friendly_name().rpartition(".")[2])]
            facts = {"num_k_heads": layer.heads, "k_head_size": layer.key_width}
            facts |= {"num_v_heads": layer.heads, "v_head_size": layer.value_width}
            for name, fact in facts.items():
                node.get_rt_info()[name] = fact


def _sinks(given: ov.Output, heads: int) -> ov.Node:
    """Return the attention sink of each head, if the model has any."""
    if given.get_partial_shape() == ov.PartialShape([0]):
        return _constant([], _F32)
    return ops.reshape(ops.convert(given, "f32"), _constant([1, heads, 1, 1], np.int64), False)


def _by_token(states: ov.Output, size: int) -> ov.Node:
    """Reshape (tokens, heads, 1, width) to (tokens, heads * width); the latter is ``size``."""
    return ops.reshape(states, _constant([-1, size], np.int64), False)


def _constant(value: Any, dtype: Any) -> ov.Node:
    return ops.constant(np.array(value, dtype=dtype))
