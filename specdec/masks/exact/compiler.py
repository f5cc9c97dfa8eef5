"""The masks of bit-exact attention: boolean visibility with the regions of each node's sum."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import PrivateAttr

from specdec.layout import Shapes
from specdec.masks.base import MaskCompiler
from specdec.masks.exact.regions import ATTENTION, OPEN, Region, closed_region, regions_of, with_regions
from specdec.masks.visibility import Marks, MaskCache, seen_by_kind
from specdec.models.independent_rows import has_kernels
from specdec.tree import DraftTree


class ExactCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots), True where visible, for ``specdec/masks/exact/kernel.py``."""

    attention: ClassVar[str | None] = ATTENTION
    bit_exact: ClassVar[bool] = True
    max_depth: ClassVar[int | None] = OPEN

    _cache: MaskCache = PrivateAttr(default_factory=MaskCache)

    def register(self) -> None:
        from specdec.masks.exact import kernel  # imports transformers, which takes seconds

        kernel.register()

    @classmethod
    def choices(cls, device: torch.device) -> Mapping[int, Self]:
        return {} if has_kernels(device) else {0: cls()}

    def refuses(self, device: torch.device, dtype: torch.dtype) -> str:
        from specdec.masks.exact import kernel

        return kernel.uncovered(dtype)

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        if len(trees) == 1 and not any(shapes.attention.values()):
            region = self._only_region(trees[0], lengths[0], shapes)
            if region is not None:
                mask = self._cache.after_prefix(
                    lengths[0], trees[0], width, Marks(True, False, torch.bool, shapes.device)
                )
                return dict.fromkeys(shapes.attention, with_regions(mask[None, None], [region]))
        masks = {}
        for kind, seen in seen_by_kind(trees, lengths, positions, shapes):
            regions = [
                region  # padding belongs to none
                for row, tree in enumerate(trees)
                for region in regions_of(row, seen[row, : len(tree)], positions[row, : len(tree)], shapes.device)
            ]
            masks[kind] = with_regions(torch.from_numpy(seen).to(shapes.device)[:, None], regions)
        return masks

    def _only_region(self, tree: DraftTree, length: int, shapes: Shapes) -> Region | None:
        """Return what ``regions_of`` returns for a row without windows, if it is one region; else None."""
        closed = closed_region(0, length)
        if closed != closed_region(0, length + max(tree.depths)):
            return None
        marks = Marks(0.0, -torch.inf, torch.float32, shapes.device)
        hidden = self._cache.after_prefix(length - closed.stop, tree, len(tree), marks)
        return Region(0, slice(0, len(tree)), closed, (slice(closed.stop, length + len(tree)),), hidden)
