"""Masks for the tail only: all nodes of a row see the same committed prefix, which needs no mask.

So no mask as long as the context is built or copied, and the prefix is computed by kernels without masks, such as
FlashAttention (``kernel.py``). There is no compiler for FlexAttention: its block masks take milliseconds to build for
every tree, and without compilation it holds all scores in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from specdec.layout import Shapes, Window
from specdec.masks import MaskCompiler, ancestors, first_seen, needs_no_mask, register_attention
from specdec.tree import DraftTree
from specdec_flash.parts import ATTENTION, SplitMask


class SplitCompiler(MaskCompiler):
    """Masks over each row's tail, ``(rows, 1, width, tail slots)``, with the prefix that needs no mask."""

    attention: ClassVar[str | None] = ATTENTION

    least_prefix: int = Field(
        default=128,
        ge=1,
        description="in slots; a shorter prefix is computed with the tail, since a part of its own would cost more",
    )

    def register(self) -> None:
        from specdec_flash.kernel import import_flash_attn, split_attention  # imports transformers, which takes seconds

        import_flash_attn()
        register_attention(ATTENTION, split_attention)

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        if needs_no_mask(trees, lengths, width, shapes):
            return {}
        closures = [ancestors(tree, width) for tree in trees]
        masks: dict[str, torch.Tensor] = {}
        for kind, window in shapes.attention.items():
            if any(tree.block_kinds for tree in trees):
                closures = [ancestors(tree, width, kind) for tree in trees]
            rows = [
                _row(window, length, row_positions, closure, len(tree), self.least_prefix)
                for tree, length, row_positions, closure in zip(trees, lengths, positions, closures, strict=True)
            ]
            masks[kind] = _joined(rows, shapes)
        return masks


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: prefix, which nodes see it (width,), tail slots, and which of these each node sees (width, slots)."""

    prefix: slice
    sees: np.ndarray
    slots: np.ndarray
    visible: np.ndarray


def _row(
    window: Window | None, length: int, positions: np.ndarray, closure: np.ndarray, num_nodes: int, least_prefix: int
) -> _Row:
    """Divide a row; ``positions`` (width,) and ``closure`` (width, width) include padding, ``num_nodes`` doesn't."""
    width = len(positions)
    stop = length + (width == 1)  # a single node counts as committed: it sees itself
    first = first_seen(window, positions)
    is_node = np.arange(width) < num_nodes
    sees = is_node & (first < stop)
    begin = int(first[sees].min(initial=stop))
    start = int(first[sees].max(initial=begin))
    if stop - start < least_prefix:
        start, sees = stop, np.zeros_like(sees)
    before, nodes = np.arange(begin, start), slice(stop - length, width)
    visible = [
        is_node[:, None] & (before >= first[:, None]),
        closure[:, nodes] & (positions[nodes] >= first[:, None]),
    ]
    slots = np.concatenate([before, np.arange(stop, length + width)])
    return _Row(slice(start, stop), sees, slots, np.concatenate(visible, axis=1))


def _joined(rows: Sequence[_Row], shapes: Shapes) -> SplitMask:
    """Join the rows' tails; shorter tails are padded with hidden slots."""
    longest = max(len(row.slots) for row in rows)
    tail = np.full((len(rows), 1, len(rows[0].sees), longest), -np.inf, dtype=np.float32)
    slots = np.zeros((len(rows), longest), dtype=np.int64)
    for index, row in enumerate(rows):
        tail[index, 0, :, : len(row.slots)][row.visible] = 0.0
        slots[index, : len(row.slots)] = row.slots
    blind = np.array([~row.sees for row in rows])
    is_run = len(rows) == 1 and longest > 0 and slots[0, -1] - slots[0, 0] == longest - 1
    # With float64 states the CPU kernel misreads a float32 mask.
    dtype = torch.promote_types(shapes.dtype, torch.float32)
    return SplitMask.of(
        torch.from_numpy(tail).to(shapes.device, dtype),
        slice(int(slots[0, 0]), int(slots[0, -1]) + 1) if is_run else torch.from_numpy(slots).to(shapes.device),
        tuple(row.prefix for row in rows),
        torch.from_numpy(blind).to(shapes.device) if blind.any() else None,
    )
