"""Attention whose bits depend only on what a node sees: sums go through the positions in order, in chunks.

Other kernels go through the cache's slots, and a draft tree's slots are in another order than plain decoding's. Here
each node's slots are looked up by position. Positions 0 … 255 are the first chunk, and so on: attention over a chunk is
computed alone, and the chunks are merged in their order (Rabe and Staats 2021, arXiv 2112.05682, section 2). Nothing in
a node's sum depends on other nodes, on the row's place in the batch or on the size of the cache; chunks that a node
doesn't see change no bit.

On GPUs with Triton this is one kernel, or two if chunks are merged (``gpu_kernel.py``). The functions here are the
reference, and run elsewhere. That rows of the model's layers are independent, too, is tested by
``specdec/runtime/probes``. torch's norms need ``specdec/models/independent_rows.py`` for it.
"""

from typing import Any

import torch

from specdec.errors import ModelError
from specdec.layout import FixedMask
from specdec.masks.base import AttentionKind
from specdec.models.independent_rows import has_kernels
from specdec.models.leaf_call import leaf_call

CHUNK = 256
ROW, FIRST, PREFIX, STOP, NUM_HEADER = range(5)  # the columns of a table


class SlotTable(FixedMask):
    """The cache slots that each node sees, by position: int32, ``(rows, 1, width, 4 + listed)``.

    A node at position p sees the positions ``first`` … p. Those below ``prefix`` are in the slots of the same number;
    the slots of the others are listed. So a table is as wide as a tree is deep, however long the text is.

    A node's numbers are the row of its keys, ``first``, ``prefix``, ``stop`` = p + 1, and the slots of the positions
    from ``prefix`` on; those from ``stop`` on are unused.
    """

    def visible(self) -> torch.Tensor:
        table = self[:, 0].long()
        listed = table[..., NUM_HEADER:]
        num_slots = int(torch.maximum(table[..., STOP].max(), listed.max() + 1))
        slots = torch.arange(num_slots, device=table.device)
        end = torch.minimum(table[..., PREFIX], table[..., STOP])
        seen = (slots >= table[..., FIRST, None]) & (slots < end[..., None])
        positions = table[..., PREFIX, None] + torch.arange(listed.shape[-1], device=table.device)
        is_seen = (positions >= table[..., FIRST, None]) & (positions < table[..., STOP, None])
        others = torch.zeros_like(seen, dtype=torch.int64)
        others.scatter_add_(2, listed.clamp(min=0), is_seen.long())
        return seen | (others > 0)

    def numbered_from(self, first: int) -> torch.Tensor:
        numbers = self.as_subclass(torch.Tensor)
        if first == 0:
            return numbers
        numbers = numbers.clone()
        numbers[..., ROW] += first
        return numbers


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
        raise ModelError("specdec_slot_table needs tables of specdec's slot_table compiler, and no position bias")
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
