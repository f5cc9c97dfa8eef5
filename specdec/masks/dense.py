"""One additive mask per kind of attention layer, which every kernel accepts; the reference for other compilers."""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from pydantic import PrivateAttr

from specdec.layout import Shapes
from specdec.masks.base import MaskCompiler
from specdec.masks.visibility import Marks, MaskCache, needs_no_mask, seen_by_kind
from specdec.tree import DraftTree


class DenseCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots) in the model's dtype: 0 where visible, its lowest value elsewhere."""

    _cache: MaskCache = PrivateAttr(default_factory=MaskCache)

    @classmethod
    def choices(cls, device: torch.device) -> Mapping[int, Self]:
        return {0: cls()}

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        if needs_no_mask(trees, lengths, width, shapes):
            return {}
        marks = Marks(0.0, torch.finfo(shapes.dtype).min, shapes.dtype, shapes.device)
        if len(trees) == 1 and not any(shapes.attention.values()):
            mask = self._cache.after_prefix(lengths[0], trees[0], width, marks)
            return dict.fromkeys(shapes.attention, mask[None, None])
        masks = {}
        for kind, seen in seen_by_kind(trees, lengths, positions, shapes):
            mask = torch.zeros(seen.shape, dtype=shapes.dtype, device=shapes.device)
            masks[kind] = mask.masked_fill_(torch.from_numpy(~seen).to(shapes.device), marks.hidden)[:, None]
        return masks
