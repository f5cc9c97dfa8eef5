"""Visibility of slots to the nodes of a pass, as boolean arrays; all compilers derive their masks from these.

A tree's mask is a view of the end of a longer one, which ``MaskCache`` stores, so it stays valid as the context grows.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.layout import Shapes, Window
from specdec.tree import DraftTree

_ROOM = 256  # spare slots of a cached mask, for the context to grow
_WIDEST = 128  # a prompt's chunks are wider, and aren't reused
_MOST_NUMBERS, _MOST_OF_ONE = 2**21, 2**19  # in all cached masks, and in one


def needs_no_mask(trees: Sequence[DraftTree], lengths: Sequence[int], width: int, shapes: Shapes) -> bool:
    """Return True if the model's own causal mask serves a pass.

    It serves a single row in a model without windows: one node after the committed slots, or a chain at the start.
    """
    is_plain = len(trees) == 1 and (width == 1 or (trees[0].is_chain and lengths[0] == 0 and shapes.has_causal_mask))
    is_plain &= not trees[0].blocks
    return is_plain and not any(shapes.attention.values())


def seen_by_kind(
    trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each kind of attention layer with the slots that its nodes see, ``(rows, width, slots)``."""
    width, known = positions.shape[1], dict[bool, np.ndarray]()
    for kind, window in shapes.attention.items():
        has_blocks = any(tree.blocks_in(kind) for tree in trees)
        if has_blocks not in known:
            known[has_blocks] = visibility(trees, lengths, width, kind)
        visible = known[has_blocks]
        yield kind, visible if window is None else visible & within(window, positions, lengths, visible.shape[2])


def visibility(trees: Sequence[DraftTree], lengths: Sequence[int], width: int, kind: str) -> np.ndarray:
    """Return which slots each node sees without windows, ``(rows, width, slots)``; a padding node sees only itself.

    Args:
        kind: of the attention layer.
    """
    visible = np.zeros((len(trees), width, max(lengths) + width), dtype=bool)
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        visible[row, : len(tree), :length] = True
        visible[row, :, length : length + width] = ancestors(tree, width, kind)
    return visible


def ancestors(tree: DraftTree, width: int, kind: str | None = None) -> np.ndarray:
    """Return the ancestor matrix: entry [i, j] is True if node j is an ancestor of node i, or i itself.

    Nodes of a block are one another's ancestors. Shape ``(width, width)``, padding included.

    Args:
        kind: of the attention layer, if the tree's ``block_kinds`` may leave it out.
    """
    closure = np.eye(width, dtype=bool)
    for node in range(1, len(tree)):
        closure[node] |= closure[tree.parents[node]]
    for block in tree.blocks if kind is None else tree.blocks_in(kind):
        closure[block.start : block.stop, block.start : block.stop] = True
    return closure


def within(window: Window, positions: np.ndarray, lengths: Sequence[int], slots: int) -> np.ndarray:
    """Return which slots are in each node's window, ``(rows, width, slots)``, by their positions."""
    slot_positions = np.tile(np.arange(slots), (len(lengths), 1))
    for row, length in enumerate(lengths):
        slot_positions[row, length : length + positions.shape[1]] = positions[row]
    is_inside: np.ndarray = window.contains(positions[:, :, None], slot_positions[:, None, :])
    return is_inside


def first_seen(window: Window | None, positions: np.ndarray) -> np.ndarray:
    """Return the position of the earliest token that each node sees, in the shape of ``positions``."""
    if window is None:
        return np.zeros_like(positions)
    first: np.ndarray = (
        np.maximum(0, positions - window.size + 1)
        if window.kind == "sliding"
        else positions // window.size * window.size
    )
    return first


@dataclass(frozen=True, slots=True)
class Marks:
    """The values by which a mask marks a slot as visible or hidden, with their dtype and device."""

    visible: float
    hidden: float
    dtype: torch.dtype
    device: torch.device


_Shape = tuple[tuple[int, ...], tuple[range, ...], int, Marks]


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
        shape = tuple(tree.parents), tree.blocks, width, marks
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
