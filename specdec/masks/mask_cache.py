"""Masks that outlast their pass: as the context grows, the end of a longer one of the same tree shape is read."""

from collections import OrderedDict
from dataclasses import dataclass

import torch

from specdec.masks.visibility import ancestors
from specdec.tree import DraftTree

_ROOM = 256  # slots by which a kept mask outlasts the context that it was made for
_WIDEST = 128  # a prompt's chunks are wider, and don't come again
_MOST_NUMBERS, _MOST_OF_ONE = 2**21, 2**19  # in all kept masks, and in one


@dataclass(frozen=True, slots=True)
class Marks:
    """The values by which a mask marks a slot as visible or hidden, with their dtype and device."""

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
        is_kept = width <= _WIDEST and width * (length + _ROOM + width) <= _MOST_OF_ONE
        kept = self._masks.pop(shape, None)
        self._num_numbers -= 0 if kept is None else kept.numel()
        if kept is None or kept.shape[1] < length + width:
            room = length + _ROOM - length % _ROOM if is_kept else length
            kept = torch.full((width, room + width), marks.visible, dtype=marks.dtype, device=marks.device)
            closure = torch.from_numpy(ancestors(tree, width)).to(marks.device)
            kept[:, room:].masked_fill_(~closure, marks.hidden)
            kept[len(tree) :, :room] = marks.hidden  # padding sees itself alone
        if is_kept:
            self._masks[shape] = kept
            self._num_numbers += kept.numel()
            while self._num_numbers > _MOST_NUMBERS:
                self._num_numbers -= self._masks.popitem(last=False)[1].numel()  # the one used longest ago
        end = kept[:, kept.shape[1] - length - width :]
        return end if end.is_cpu else end.contiguous()  # kernels elsewhere take strides for where it begins
