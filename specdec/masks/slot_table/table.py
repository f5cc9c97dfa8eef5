"""The cache slots that a node sees, by position.

A node at position p sees the positions ``first`` … p. Those below ``prefix`` are in the slots of the same number; the
slots of the others are listed. So a table is as wide as a tree is deep, however long the text is.
"""

import torch

from specdec.layout import PartialMask

ATTENTION = "specdec_slot_table"  # transformers' name of the attention that reads these tables
ROW, FIRST, PREFIX, STOP, NUM_HEADER = range(5)


class SlotTable(PartialMask):
    """Slots by position, int32, ``(rows, 1, width, 4 + listed)``: four numbers of each node, then its listed slots.

    The numbers are the row of its keys, ``first``, ``prefix``, and the position after its own, ``stop``. Listed slot i
    has position ``prefix + i``; numbers after that of the node's own position are unused.
    """

    def visible(self) -> torch.Tensor:
        table = self[:, 0].long()
        listed = table[..., NUM_HEADER:]
        num_slots = int(torch.maximum(table[..., STOP].max(), listed.max() + 1))
        slots = torch.arange(num_slots, device=table.device)
        seen = (slots >= table[..., FIRST, None]) & (
            slots < torch.minimum(table[..., PREFIX], table[..., STOP])[..., None]
        )
        positions = table[..., PREFIX, None] + torch.arange(listed.shape[-1], device=table.device)
        is_seen = (positions >= table[..., FIRST, None]) & (positions < table[..., STOP, None])
        others = torch.zeros_like(seen, dtype=torch.int64)
        others.scatter_add_(2, listed.clamp(min=0), is_seen.long())
        return seen | (others > 0)


def numbered_from(table: torch.Tensor, first: int) -> torch.Tensor:
    """Return a table's numbers for rows that begin at row ``first`` of the keys, as an ordinary tensor."""
    numbers = table.as_subclass(torch.Tensor)
    if first == 0:
        return numbers
    numbers = numbers.clone()
    numbers[..., ROW] += first
    return numbers
