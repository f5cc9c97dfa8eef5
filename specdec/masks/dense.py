"""One additive mask per kind of attention layer: the form every kernel takes, and the oracle of the others."""

from collections.abc import Sequence

import numpy as np
import torch

from specdec.layout import Shapes
from specdec.masks.base import MaskCompiler
from specdec.masks.visibility import needs_no_mask, visibility, within
from specdec.tree import DraftTree


class DenseCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots) in the model's dtype: 0 where visible, its lowest value elsewhere."""

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        if needs_no_mask(trees, lengths, positions.shape[1], shapes):
            return {}
        visible = visibility(trees, lengths, positions.shape[1])
        lowest = torch.finfo(shapes.dtype).min
        masks = {}
        for kind, window in shapes.attention.items():
            seen = visible if window is None else visible & within(window, positions, lengths, visible.shape[2])
            bias = np.where(seen, 0.0, lowest).astype(_host_dtype(shapes.dtype), copy=False)
            masks[kind] = torch.from_numpy(bias).to(shapes.device, shapes.dtype)[:, None]
        return masks


def _host_dtype(dtype: torch.dtype) -> type[np.floating]:
    """numpy has no bfloat16; float32 holds its lowest value exactly."""
    return np.float64 if dtype == torch.float64 else np.float32
