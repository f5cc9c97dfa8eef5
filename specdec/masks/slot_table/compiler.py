"""The tables of bit-exact attention on GPUs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from specdec.layout import FIRST, NUM_HEADER, PREFIX, ROW, SLOT_TABLE, STOP, Shapes, SlotTable
from specdec.masks.base import MaskCompiler
from specdec.masks.visibility import first_seen
from specdec.models.independent_rows import independent_rows
from specdec.tree import DraftTree


class SlotTableCompiler(MaskCompiler):
    """Slots by position, ``(rows, 1, width, 4 + listed)``, for ``kernel.py``: see ``SlotTable``."""

    attention: ClassVar[str | None] = SLOT_TABLE
    bit_exact: ClassVar[bool] = True

    own_products: bool = Field(
        default=False,
        description="compute linear layers, too, by kernels whose rows are independent: for models whose products "
        "have other bits for other numbers of rows",
    )

    def refuses(self, dtype: torch.dtype) -> str:
        return "" if dtype != torch.float64 else f"{SLOT_TABLE} supports bfloat16, float16 and float32, not float64"

    def operations(self, device: torch.device) -> AbstractContextManager[object]:
        return independent_rows(device, self.own_products)

    def register(self) -> None:
        from specdec.masks.slot_table import kernel  # imports transformers, which takes seconds

        kernel.register()

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        prefixes, listed = _listed(trees, lengths, width)
        table = np.empty((len(trees), 1, width, NUM_HEADER + listed.shape[2]), np.int32)
        table[:, 0, :, ROW] = np.arange(len(trees))[:, None]
        table[:, 0, :, PREFIX], table[:, 0, :, STOP], table[:, 0, :, NUM_HEADER:] = prefixes, positions + 1, listed
        is_padding = np.arange(width) >= np.array([*map(len, trees)])[:, None]
        masks = dict[str, torch.Tensor]()
        for kind, window in shapes.attention.items():
            # Padding stands after the committed tokens, and sees itself alone.
            table[:, 0, :, FIRST] = np.where(is_padding, positions, first_seen(window, positions))
            masks[kind] = torch.tensor(table, device=shapes.device).as_subclass(SlotTable)
        return masks


def _listed(trees: Sequence[DraftTree], lengths: Sequence[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each node's ``prefix``, (rows, width), and its listed slots, (rows, width, listed).

    Nodes whose slot is their position, as all of a chain's are, have no listed slots. Few shapes occur: 1 is listed for
    chains and their padding, ``width`` for others.
    """
    prefixes = np.tile(np.array(lengths)[:, None], (1, width))
    is_chain = all(tree.depths[-1] == len(tree) - 1 for tree in trees)
    listed = np.zeros((len(trees), width, 1 if is_chain else width), np.int32)
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        slots = np.arange(length, length + width, dtype=np.int32)
        listed[row, len(tree) :, 0] = slots[len(tree) :]  # of padding
        for node, (depth, parent) in enumerate(zip(tree.depths, tree.parents, strict=True)):
            if depth == node:  # its ancestors are all nodes before it
                prefixes[row, node] = length + depth + 1
            else:
                above = slots if tree.depths[parent] == parent else listed[row, parent]
                listed[row, node, :depth] = above[:depth]
                listed[row, node, depth] = slots[node]
    return prefixes, listed
