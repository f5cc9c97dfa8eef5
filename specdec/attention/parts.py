"""What split attention reads in place of a mask: a stretch of slots that all nodes see, and a masked tail.

For each row the prefix is the committed slots that its nodes see alike. The tail is everything else: the nodes' own
slots, and with a sliding window the few committed ones that have left it for the deepest node but not for the root.
"""

from typing import Self

import torch

from specdec.layout import PartialMask

ATTENTION = "specdec_split"  # the name under which transformers knows the attention that reads these


class SplitMask(PartialMask):
    """The tail's mask, additive, (rows, 1, width, tail slots): 0 where a node sees a slot of the tail, else -inf.

    Attributes:
        prefixes: per row, the slots of its prefix; there may be none.
        slots: which slots the columns stand for, (rows, tail slots); rows that have fewer repeat one that is hidden.
        blind: which nodes see nothing of their row's prefix, (rows, width); None where all nodes of all rows see it.
    """

    prefixes: tuple[slice, ...]
    slots: torch.Tensor
    blind: torch.Tensor | None

    @classmethod
    def of(
        cls, tail: torch.Tensor, slots: torch.Tensor, prefixes: tuple[slice, ...], blind: torch.Tensor | None
    ) -> Self:
        mask = tail.as_subclass(cls)
        mask.slots, mask.prefixes, mask.blind = slots, prefixes, blind
        return mask

    def visible(self) -> torch.Tensor:
        rows, _, width, _ = self.shape
        ends = [prefix.stop for prefix in self.prefixes] + (self.slots + 1).flatten().tolist()
        seen = torch.zeros(rows, width, max(ends), dtype=torch.int64, device=self.device)
        seen.scatter_add_(2, self.slots[:, None].expand(self[:, 0].shape), (self[:, 0] == 0).long())
        for row, prefix in enumerate(self.prefixes):
            sees = slice(None) if self.blind is None else ~self.blind[row]
            seen[row, sees, prefix] = 1
        return seen > 0
