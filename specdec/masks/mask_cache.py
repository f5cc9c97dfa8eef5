"""A cache of masks: a tree's mask is a view of the end of a longer one, so it stays valid as the context grows."""

from collections import OrderedDict
from dataclasses import dataclass

import torch

from specdec.masks.visibility import ancestors
from specdec.tree import DraftTree

_ROOM = 256  # spare slots of a cached mask, for the context to grow
_WIDEST = 128  # a prompt's chunks are wider, and aren't reused
_MOST_NUMBERS, _MOST_OF_ONE = 2**21, 2**19  # in all cached masks, and in one


@dataclass(frozen=True, slots=True)
class Marks:
    """The values by which a mask marks a slot as visible or hidden, with their dtype and device."""

    visible: float
    hidden: float
    dtype: torch.dtype
    device: torch.device


_Shape = tuple[tuple[int, ...], int, Marks]


class MaskCache:
    """Recently used masks of single rows; all caches compare equal, so compilers are compared by their options."""

    def __init__(self) -> None:
        self._masks: OrderedDict[_Shape, torch.Tensor] = OrderedDict()
        self._num_numbers = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskCache)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def after_prefix(self, length: int, tree: DraftTree, width: int, marks: Marks) -> torch.Tensor:
        """Return a tree's mask after ``length`` slots that all its nodes see, (width, length + width); read-only."""
        shape = tuple(tree.parents), width, marks
        is_cached = width <= _WIDEST and width * (length + _ROOM + width) <= _MOST_OF_ONE
        cached = self._masks.pop(shape, None)
        self._num_numbers -= 0 if cached is None else cached.numel()
        if cached is None or cached.shape[1] < length + width:
            room = length + _ROOM - length % _ROOM if is_cached else length
            cached = torch.full((width, room + width), marks.visible, dtype=marks.dtype, device=marks.device)
            closure = torch.from_numpy(ancestors(tree, width)).to(marks.device)
            cached[:, room:].masked_fill_(~closure, marks.hidden)
            cached[len(tree) :, :room] = marks.hidden  # padding sees itself alone
        if is_cached:
            self._masks[shape] = cached
            self._num_numbers += cached.numel()
            while self._num_numbers > _MOST_NUMBERS:
                self._num_numbers -= self._masks.popitem(last=False)[1].numel()  # the least recently used
        end = cached[:, cached.shape[1] - length - width :]
        return end if end.is_cpu else end.contiguous()  # other kernels don't support the strides of such a view
