"""Masks that outlast their pass: as the context grows, the end of a longer one of the same tree shape is read."""

from collections import OrderedDict
from dataclasses import dataclass

import torch

from specdec.masks.visibility import ancestors
from specdec.tree import DraftTree

_ROOM = 256  # slots by which a kept mask outlasts the context that it was made for
_WIDEST, _MOST_NUMBERS = 128, 2**21  # of kept masks: a prompt's chunks are wider, and don't come again


@dataclass(frozen=True, slots=True)
class Marks:
    """What a mask says of a slot, and as what."""

    visible: float
    hidden: float
    dtype: torch.dtype
    device: torch.device


_Shape = tuple[tuple[int, ...], int, Marks]


class KeptMasks:
    """Masks of single rows, those used last; says nothing about the compiler that keeps them."""

    def __init__(self) -> None:
        self._masks: OrderedDict[_Shape, torch.Tensor] = OrderedDict()
        self._num_numbers = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptMasks)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def behind(self, length: int, tree: DraftTree, width: int, marks: Marks) -> torch.Tensor:
        """A tree's mask behind so many slots that all its nodes see, (width, length + width); only to be read."""
        shape = tuple(tree.parents), width, marks
        kept = self._take(shape)
        if kept is None or kept.shape[1] < length + width:
            room = length + _ROOM - length % _ROOM if width <= _WIDEST else length
            kept = torch.full((width, room + width), marks.visible, dtype=marks.dtype, device=marks.device)
            closure = torch.from_numpy(ancestors(tree, width)).to(marks.device)
            kept[:, room:].masked_fill_(~closure, marks.hidden)
            kept[len(tree) :, :room] = marks.hidden  # padding sees itself alone
        if width <= _WIDEST:
            self._put(shape, kept)
        return kept[:, kept.shape[1] - length - width :]

    def _take(self, shape: _Shape) -> torch.Tensor | None:
        mask = self._masks.pop(shape, None)
        self._num_numbers -= 0 if mask is None else mask.numel()
        return mask

    def _put(self, shape: _Shape, mask: torch.Tensor) -> None:
        """Those that were used longest ago go where there are too many."""
        self._masks[shape] = mask
        self._num_numbers += mask.numel()
        while self._num_numbers > _MOST_NUMBERS:
            _, dropped = self._masks.popitem(last=False)
            self._num_numbers -= dropped.numel()
