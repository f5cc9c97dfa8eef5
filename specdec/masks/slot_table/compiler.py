"""The tables of bit-exact attention on GPUs."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import Field, field_validator

from specdec.layout import Shapes
from specdec.masks.base import MaskCompiler, register_attention
from specdec.masks.slot_table.kernel import FIRST, NUM_HEADER, PREFIX, ROW, STOP, SlotTable, slot_table_attention
from specdec.masks.visibility import first_seen
from specdec.models.independent_rows import Products, has_kernels, independent_rows
from specdec.models.split_k import is_barrable
from specdec.models.weights.row_independence import PRODUCT
from specdec.tree import DraftTree


class SlotTableCompiler(MaskCompiler):
    """Slots by position, ``(rows, 1, width, 4 + listed)``, for ``kernel.py``: see ``SlotTable``."""

    attention: ClassVar[str] = "specdec_slot_table"
    bit_exact: ClassVar[bool] = True
    has_fixed_shapes: ClassVar[bool] = True

    products: Products = Field(
        default="cublas",
        description="who multiplies: cuBLAS; cuBLAS without splitting the sums of products with few rows; or a kernel "
        "whose rows are independent, for models whose products by cuBLAS have other bits for other numbers of rows",
    )

    @field_validator("products")
    @classmethod
    def _is_available(cls, products: Products) -> Products:
        if products == "unsplit" and not is_barrable():
            raise ValueError("needs torch 2.10 or later, which can bar the split; use 'cublas' or 'own'")
        return products

    @classmethod
    def choices(cls, device: torch.device) -> Mapping[int, Self]:
        if not has_kernels(device):
            return {}
        unsplit = {0: cls(products="unsplit")} if is_barrable() else {}
        # With products of its own, reading prompts takes several times as long.
        return {1: cls(), **unsplit, -1: cls(products="own")}

    def refuses(self, device: torch.device, dtype: torch.dtype) -> str:
        if self.products == "unsplit" and dtype == torch.float32:
            return "cuBLAS can be barred from splitting sums of half precision only"
        return "" if dtype != torch.float64 else f"{self.attention} supports bfloat16, float16 and float32, not float64"

    def hint(self, why: str) -> str:
        if PRODUCT not in why:
            return ""
        return "numerics='exact' computes linear layers by a kernel of its own, which reads prompts more slowly"

    def operations(self, device: torch.device) -> AbstractContextManager[object]:
        return independent_rows(device, self.products)

    def register(self) -> None:
        register_attention(self.attention, slot_table_attention)

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        prefixes, listed = _listed(trees, lengths, width)
        table = np.empty((len(trees), 1, width, NUM_HEADER + listed.shape[2]), np.int32)
        table[:, 0, :, ROW] = np.arange(len(trees))[:, None]
        table[:, 0, :, NUM_HEADER:] = listed
        is_padding = np.arange(width) >= np.array([*map(len, trees)])[:, None]
        masks = dict[str, torch.Tensor]()
        for kind, window in shapes.attention.items():
            table[:, 0, :, PREFIX], table[:, 0, :, STOP] = prefixes, positions + 1
            for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
                for block in tree.blocks_in(kind):
                    nodes = slice(block.start, block.stop)
                    table[row, 0, nodes, PREFIX] = table[row, 0, nodes, STOP] = length + block.stop
            # Padding stands after the committed tokens, and sees itself alone.
            table[:, 0, :, FIRST] = np.where(is_padding, positions, first_seen(window, positions))
            masks[kind] = torch.from_numpy(table.copy()).as_subclass(SlotTable)
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
