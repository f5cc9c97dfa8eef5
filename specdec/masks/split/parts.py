"""The two parts that split attention reads in place of a mask: a prefix that all nodes see, and a masked tail.

The prefix of a row is the committed slots that its nodes see alike. The tail is everything else: the nodes' own slots;
with a sliding window, the few committed slots that have left it for the deepest node but not for the root; and all
committed slots where they are few.
"""

from typing import Self

import torch

from specdec.layout import PartialMask

ATTENTION = "specdec_split"  # the name under which transformers knows the attention that reads these


class SplitMask(PartialMask):
    """The tail's mask, additive, (rows, 1, width, tail slots): 0 where a node sees a slot of the tail, else -inf.

    Attributes:
        prefixes: per row, the slots of its prefix; there may be none.
        slots: which slots the columns stand for, (rows, tail slots); rows that have fewer fill up with hidden ones. A
            slice where there is one row and no gap.
        blind: which nodes see nothing of their row's prefix, (rows, width); None where all nodes of all rows see it.
    """

    prefixes: tuple[slice, ...]
    slots: torch.Tensor | slice
    blind: torch.Tensor | None

    @classmethod
    def of(
        cls,
        tail: torch.Tensor,
        slots: torch.Tensor | slice,
        prefixes: tuple[slice, ...],
        blind: torch.Tensor | None,
    ) -> Self:
        mask = tail.as_subclass(cls)
        mask.slots, mask.prefixes, mask.blind = slots, prefixes, blind
        return mask

    def visible(self) -> torch.Tensor:
        tail = self[:, 0] == 0
        slots = self.slots
        if isinstance(slots, slice):
            slots = torch.arange(slots.start, slots.stop, device=tail.device)[None]
        ends = [prefix.stop for prefix in self.prefixes] + (slots + 1).flatten().tolist()
        seen = torch.zeros(*tail.shape[:2], max(ends), dtype=torch.int64, device=tail.device)
        seen.scatter_add_(2, slots[:, None].expand(tail.shape), tail.long())
        for row, prefix in enumerate(self.prefixes):
            sees = slice(None) if self.blind is None else ~self.blind[row]
            seen[row, sees, prefix] = 1
        return seen > 0
