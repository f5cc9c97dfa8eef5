"""Attention whose bits depend only on what a node sees: sums go through the positions in order, in chunks.

Other kernels go through the cache's slots, and a draft tree's slots are in another order than plain decoding's. Here
each node's slots are looked up by position. Positions 0 … 255 are the first chunk, and so on: attention over a chunk is
computed alone, and the chunks are merged in their order (Rabe and Staats 2021, arXiv 2112.05682, section 2). Nothing in
a node's sum depends on other nodes, on the row's place in the batch or on the size of the cache; chunks that a node
doesn't see change no bit.

On GPUs with Triton this is two kernels (``gpu_kernel.py``). The functions here are the reference, and run elsewhere.
That rows of the model's layers are independent, too, is tested by ``specdec/runtime/probes``. torch's norms need
``specdec/models/independent_rows.py`` for it.
"""

from typing import Any

import torch
from transformers import AttentionInterface

from specdec.errors import ModelError
from specdec.masks.base import AttentionKind
from specdec.masks.slot_table.table import ATTENTION, FIRST, NUM_HEADER, PREFIX, ROW, STOP
from specdec.models.independent_rows import has_kernels
from specdec.models.leaf_call import leaf_call

CHUNK = 256


def register() -> None:
    """Register this attention with transformers as ``specdec_slot_table``; a second call has no effect."""
    AttentionInterface.register(ATTENTION, slot_table_attention)


@leaf_call
def slot_table_attention(  # noqa: PLR0913, PLR0917 - the arguments are transformers'
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention; called by transformers in each layer.

    Args:
        query: (rows, heads, width, head size).
        key, value: (rows of the cache, groups, slots, size), heads a multiple of groups.
        attention_mask: of the ``slot_table`` compiler, (rows, 1, width, 4 + listed).
        scaling: of the scores; softcap: their bound; s_aux: attention sinks, (heads,).

    Returns:
        (rows, width, heads, value size), and None for the weights.

    Raises:
        ModelError: for other masks, and for a position bias.
    """
    if attention_mask is None or attention_mask.dtype != torch.int32 or others.get("position_bias") is not None:
        raise ModelError(f"{ATTENTION} needs tables of specdec's slot_table compiler, and no position bias")
    table = attention_mask.as_subclass(torch.Tensor)[:, 0]
    kind = AttentionKind.of(query, scaling, softcap, s_aux)
    if has_kernels(query.device) and query.dtype != torch.float64:
        from specdec.masks.slot_table.gpu_kernel import attend

        return attend(query, key, value, table, kind), None
    return attend_by_torch(query, key, value, table, kind), None


def attend_by_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    """Return attention, (rows, width, heads, value size), by torch; the arguments are as above, the table 3-D."""
    (rows, heads, width, size), groups = query.shape, key.shape[1]
    of_row, first, prefix, stop = (table[..., column].long() for column in (ROW, FIRST, PREFIX, STOP))
    grouped = query.float().reshape(rows, groups, heads // groups, width, size)
    m = query.new_full((rows, groups, heads // groups, width, 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(m)
    if kind.sinks is not None:
        m, total = m.copy_(kind.sinks.view(groups, -1, 1, 1)), total + 1
    acc = torch.zeros(*m.shape[:4], value.shape[3], device=query.device)
    for begin in range(0, key.shape[2], CHUNK):
        positions = torch.arange(begin, begin + CHUNK, device=query.device)
        seen = (positions >= first[..., None]) & (positions < stop[..., None])
        at = (positions - prefix[..., None]).clamp(0, table.shape[2] - NUM_HEADER - 1)
        slots = torch.where(positions < prefix[..., None], positions, table[..., NUM_HEADER:].long().gather(2, at))
        slots = slots.masked_fill(~seen, 0)
        keys, values = (states[of_row[..., None], :, slots].float() for states in (key, value))
        scores = torch.einsum("rghwd,rwpgd->rghwp", grouped, keys) * kind.scale
        if kind.softcap is not None:
            scores = kind.softcap * torch.tanh(scores / kind.softcap)
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        top = scores.amax(-1, keepdim=True)
        p = (scores - top.nan_to_num(neginf=0.0)).exp()
        own, own_total = torch.einsum("rghwp,rwpgd->rghwd", p, values), p.sum(-1, keepdim=True)
        merged = torch.maximum(m, top)
        shift = merged.nan_to_num(neginf=0.0)
        fade, weight = (m - shift).exp(), (top - shift).exp()
        acc, total, m = acc * fade + own * weight, total * fade + own_total * weight, merged
    return (acc / total).to(query.dtype).permute(0, 3, 1, 2, 4).flatten(2, 3)
