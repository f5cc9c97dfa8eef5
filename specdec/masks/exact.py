"""Visibility as booleans with the regions of each node's sum: what bit-exact attention reads."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from specdec.attention.regions import ATTENTION, OPEN, regions_of, with_regions
from specdec.layout import Shapes
from specdec.masks.base import MaskCompiler
from specdec.masks.visibility import first_seen, visibility, within
from specdec.tree import DraftTree


class ExactCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots), True where visible, for ``specdec/attention/exact.py``."""

    attention: ClassVar[str | None] = ATTENTION
    bit_exact: ClassVar[bool] = True
    max_depth: ClassVar[int | None] = OPEN

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        visible = visibility(trees, lengths, positions.shape[1])
        masks = {}
        for kind, window in shapes.attention.items():
            seen = visible if window is None else visible & within(window, positions, lengths, visible.shape[2])
            regions = [
                region  # padding belongs to none
                for row, tree in enumerate(trees)
                for region in regions_of(
                    row,
                    seen[row, : len(tree)],
                    first_seen(window, positions[row, : len(tree)]),
                    positions[row, : len(tree)],
                    shapes.device,
                )
            ]
            masks[kind] = with_regions(torch.from_numpy(seen).to(shapes.device)[:, None], regions)
        return masks
