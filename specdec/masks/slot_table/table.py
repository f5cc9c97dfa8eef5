"""The masks of bit-exact attention on GPUs: tables of cache slots."""

import torch

from specdec.layout import FixedMask

ATTENTION = "specdec_slot_table"  # transformers' name of the attention that reads these masks
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
