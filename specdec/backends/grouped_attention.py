"""Grouped-query attention by torch's fused CPU kernel, without copies of keys and values.

Given a mask, transformers repeats keys and values for every query head before it calls torch's fused kernel, which
copies the whole context in each layer and step. The CPU kernel accepts grouped heads as they are, with the same bits.

If each row has one node, the heads of a group, which read the same keys, are passed as if they were more nodes: one
matrix product instead of a matrix-vector product per head. In half precision the latter takes three to seven times as
long, and twice as long even as computing a head's row twice.

Rows of different lengths are attended in parts (``partition_rows``), since in one call every row takes as long as the
longest.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface

from specdec.backends.placement import cheapest_runs
from specdec.errors import ModelError
from specdec.models.leaf_call import leaf_call

NAME = "specdec_grouped"
_HALF = torch.bfloat16, torch.float16


_CALL = 2**16  # numbers of keys that two cores read in the time that a call takes


def register() -> None:
    """Register this attention with transformers as ``NAME``; a second call has no effect."""
    AttentionInterface.register(NAME, grouped_attention)


@leaf_call
def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention, called by transformers, under a complete mask or for one node that sees everything.

    Args:
        query: (rows, heads, width, head size).
        key, value: (rows, groups, slots, head size), heads a multiple of groups.
        attention_mask: additive, (rows, 1 or heads, width, slots), not to be written to afterwards; None if the width
            is 1, and for an encoder's states, which all nodes see.

    Returns:
        (rows, width, heads, head size), and None for the weights.

    Raises:
        ModelError: if there are several nodes but no mask.
    """
    if attention_mask is None and query.shape[2] > 1 and getattr(module, "is_causal", True):
        raise ModelError(f"{NAME} received several nodes without a mask: use a model from one thread at a time")
    is_divided = query.is_cpu and others.get("position_bias") is None
    if attention_mask is None or len(attention_mask) == 1 or not is_divided:  # one row, or one mask for all
        return _attended(module, query, key, value, attention_mask, scaling, **others), None
    found: dict[int, list[tuple[slice, int]]] = attention_mask.__dict__.setdefault("parts", {})  # for all layers
    slot_size = key.shape[1] * key.shape[3]
    if slot_size not in found:
        found[slot_size] = partition_rows(visible_lengths(attention_mask), slot_size)
    parts = [
        _attended(
            module,
            query[rows],
            key[rows, :, :num_slots],
            value[rows, :, :num_slots],
            attention_mask[rows, ..., :num_slots],
            scaling,
            **others,
        )
        for rows, num_slots in found[slot_size]
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)), None


def _attended(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
    **others: Any,
) -> torch.Tensor:
    """Return attention to all slots, ``(rows, width, heads, head size)``."""
    is_faster = query.is_cpu and (query.shape[1] != key.shape[1] or query.dtype in _HALF)
    if not is_faster or others.get("position_bias") is not None or key.shape[-1] != value.shape[-1]:
        output: torch.Tensor = AttentionInterface()["sdpa"](
            module, query, key, value, attention_mask, scaling=scaling, **others
        )[0]
        return output
    is_shared = attention_mask is None or (query.dtype in _HALF and attention_mask.shape[1] == 1)
    if query.shape[2] == 1 and is_shared:  # under a mask float32 gains nothing
        return _attended_by_groups(query, key, value, attention_mask, scaling)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous()


def _attended_by_groups(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """Attention of single nodes, (rows, 1, heads, head size), with the heads of a group in place of the width."""
    rows, heads, _, size = query.shape
    folded = query.reshape(rows, key.shape[1], -1, size)
    if folded.shape[2] == 1 and query.dtype in _HALF:
        folded = folded.expand(-1, -1, 2, -1)
    mask = None if mask is None else mask.expand(-1, -1, folded.shape[2], -1)
    attended = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return attended[:, :, : heads // key.shape[1]].reshape(rows, 1, heads, size)


def partition_rows(lengths: Sequence[int], slot_size: int) -> list[tuple[slice, int]]:
    """Partition rows into runs of consecutive ones at the least cost, counting calls and the slots that they read.

    Args:
        lengths: by row, the number of slots up to the last visible one.
        slot_size: numbers in the keys of a slot.

    Returns:
        The rows of each part, and the number of slots that it reads: the length of its longest row.
    """
    runs = cheapest_runs(lengths, _CALL / slot_size)
    return [(slice(run.start, run.stop), max(lengths[run.start : run.stop])) for run in runs]


def visible_lengths(mask: torch.Tensor) -> list[int]:
    """Return, by row, the number of slots up to the last that any node sees.

    The mask is additive, ``(rows, heads, width, slots)``.
    """
    seen = (mask > torch.finfo(mask.dtype).min).any(1).any(1)
    unseen = seen.flip(1).to(torch.uint8).argmax(1)
    lengths: list[int] = (seen.shape[1] - unseen).tolist()
    return lengths
