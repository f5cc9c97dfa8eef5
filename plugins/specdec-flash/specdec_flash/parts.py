"""The two parts of split attention: a prefix that all nodes see, and a masked tail.

The prefix of a row consists of the committed slots that all of its nodes see. The tail is everything else: the nodes'
own slots; with a sliding window, the few committed slots that the root still sees but the deepest node doesn't; and all
committed slots if there are only a few.
"""

from typing import Self

import torch

from specdec.layout import PartialMask

ATTENTION = "specdec_split"  # transformers' name of the attention that reads these masks


class SplitMask(PartialMask):
    """The tail's mask, additive, ``(rows, 1, width, tail slots)``: 0 if a node sees a slot of the tail, else -inf.

    Attributes:
        prefixes: the slots of each row's prefix, which may be empty.
        slots: the cache slots of the columns, ``(rows, tail slots)``, padded with hidden ones; a slice if there is one
            row without gaps.
        blind: the nodes that don't see their row's prefix, ``(rows, width)``; None if all see it.
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
