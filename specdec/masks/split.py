"""No mask over the prefix: where all nodes of a row see the same committed slots, only the tail behind needs one.

So there is no mask as long as the context to build and to move, and the prefix goes through kernels that take none,
FlashAttention among them (``specdec/attention/split.py``). There is no compiler for FlexAttention beside this one: its
block masks take milliseconds to make, for every tree anew, and without compilation it holds all scores at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from specdec.attention.parts import ATTENTION, SplitMask
from specdec.layout import Shapes, Window
from specdec.masks.base import MaskCompiler
from specdec.masks.visibility import ancestors, first_seen, needs_no_mask
from specdec.tree import DraftTree


class SplitCompiler(MaskCompiler):
    """Masks over each row's tail, (rows, 1, width, tail slots), with the stretch of slots before it."""

    attention: ClassVar[str | None] = ATTENTION

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        if needs_no_mask(trees, lengths, width, shapes):
            return {}
        closures = [ancestors(tree, width) for tree in trees]
        return {
            kind: _joined(
                [
                    _row_parts(window, length, own, closure, len(tree))
                    for tree, length, own, closure in zip(trees, lengths, positions, closures, strict=True)
                ],
                shapes,
            )
            for kind, window in shapes.attention.items()
        }


@dataclass(frozen=True, slots=True)
class _RowParts:
    """One row: its prefix, which nodes see it (width,), the tail's slots, and what of them they see (width, slots)."""

    prefix: slice
    sees: np.ndarray
    slots: np.ndarray
    visible: np.ndarray


def _row_parts(
    window: Window | None, length: int, positions: np.ndarray, closure: np.ndarray, num_nodes: int
) -> _RowParts:
    """Args: as in ``first_seen`` and ``ancestors``; ``num_nodes`` without padding."""
    width = len(positions)
    stop = length + (width == 1)  # a node alone sees itself as it sees the prefix
    first = first_seen(window, positions)
    sees = (first < stop) & (np.arange(width) < num_nodes)
    begin, start = (first[sees].min(), first[sees].max()) if sees.any() else (stop, stop)
    before = np.arange(begin, start)  # committed, and seen by some of the nodes only
    return _RowParts(
        prefix=slice(int(start), stop),
        sees=sees,
        slots=np.concatenate([before, np.arange(stop, length + width)]),
        visible=np.concatenate(
            [
                sees[:, None] & (before >= first[:, None]),
                closure[:, stop - length :] & (positions[stop - length :] >= first[:, None]),
            ],
            axis=1,
        ),
    )


def _joined(rows: Sequence[_RowParts], shapes: Shapes) -> SplitMask:
    """The rows' tails side by side, those with fewer slots filled up with hidden ones."""
    # Beside float64 states the CPU's kernel takes a float32 mask for what it isn't.
    dtype = torch.promote_types(shapes.dtype, torch.float32)
    width, longest = len(rows[0].sees), max(len(row.slots) for row in rows)
    tail = np.full((len(rows), 1, width, longest), -np.inf, dtype=np.float32)
    slots = np.zeros((len(rows), longest), dtype=np.int64)
    for index, row in enumerate(rows):
        tail[index, 0, :, : len(row.slots)][row.visible] = 0.0
        slots[index, : len(row.slots)] = row.slots
    blind = np.array([~row.sees for row in rows])
    return SplitMask.of(
        torch.from_numpy(tail).to(shapes.device, dtype),
        torch.from_numpy(slots).to(shapes.device),
        tuple(row.prefix for row in rows),
        torch.from_numpy(blind).to(shapes.device) if blind.any() else None,
    )
