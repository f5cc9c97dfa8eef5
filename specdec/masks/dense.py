"""One additive mask per kind of attention layer: the form every kernel takes, and the oracle of the others."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from pydantic import PrivateAttr

from specdec.layout import Shapes
from specdec.masks.base import MaskCompiler
from specdec.masks.visibility import ancestors, needs_no_mask, visibility, within
from specdec.tree import DraftTree

_MOST_SHAPES = 32  # tree shapes whose masks are kept
_ROOM = 256  # slots by which a kept mask outlasts the context that it was made for


class DenseCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots) in the model's dtype: 0 where visible, its lowest value elsewhere."""

    _kept: OrderedDict[Hashable, torch.Tensor] = PrivateAttr(default_factory=OrderedDict)

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        width = positions.shape[1]
        if needs_no_mask(trees, lengths, width, shapes):
            return {}
        if len(trees) == 1 and not any(shapes.attention.values()):
            mask = self._widened(trees[0], lengths[0], width, shapes)
            return dict.fromkeys(shapes.attention, mask)
        visible = visibility(trees, lengths, width)
        masks = {}
        for kind, window in shapes.attention.items():
            seen = visible if window is None else visible & within(window, positions, lengths, visible.shape[2])
            masks[kind] = _additive(seen, shapes)[:, None]
        return masks

    def _widened(self, tree: DraftTree, length: int, width: int, shapes: Shapes) -> torch.Tensor:
        """A row's mask behind so many committed slots: the end of a longer one of the same tree shape."""
        shape = tuple(tree.parents), width, shapes.dtype, shapes.device
        kept = self._kept.pop(shape, None)
        if kept is None or kept.shape[3] < length + width:
            room = length + _ROOM - length % _ROOM
            kept = torch.zeros(1, 1, width, room + width, dtype=shapes.dtype, device=shapes.device)
            kept[..., room:] = _additive(ancestors(tree, width), shapes)
            kept[..., len(tree) :, :room] = torch.finfo(shapes.dtype).min  # padding sees itself alone
        self._kept[shape] = kept
        if len(self._kept) > _MOST_SHAPES:
            self._kept.popitem(last=False)
        return kept[..., kept.shape[3] - length - width :]


def _additive(seen: np.ndarray, shapes: Shapes) -> torch.Tensor:
    lowest = torch.finfo(shapes.dtype).min
    # numpy has no bfloat16; float32 holds its lowest value exactly.
    host_dtype = np.float64 if shapes.dtype == torch.float64 else np.float32
    bias = np.where(seen, 0.0, lowest).astype(host_dtype, copy=False)
    return torch.from_numpy(bias).to(shapes.device, shapes.dtype)
