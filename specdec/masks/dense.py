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

_ROOM = 256  # slots by which a kept mask outlasts the context that it was made for
_WIDEST, _MOST_NUMBERS = 128, 2**21  # of kept masks: a prompt's chunks are wider, and don't come again


class _Kept:
    """Masks by tree shape, those used last; says nothing about the compiler that keeps them."""

    def __init__(self) -> None:
        self._masks: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._num_numbers = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def take(self, shape: Hashable) -> torch.Tensor | None:
        """Take a mask out."""
        mask = self._masks.pop(shape, None)
        self._num_numbers -= 0 if mask is None else mask.numel()
        return mask

    def put(self, shape: Hashable, mask: torch.Tensor) -> None:
        """Put a mask in, and drop those that were used longest ago where they are too many."""
        self._masks[shape] = mask
        self._num_numbers += mask.numel()
        while self._num_numbers > _MOST_NUMBERS:
            _, dropped = self._masks.popitem(last=False)
            self._num_numbers -= dropped.numel()


class DenseCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots) in the model's dtype: 0 where visible, its lowest value elsewhere."""

    _kept: _Kept = PrivateAttr(default_factory=_Kept)

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
        kept = self._kept.take(shape)
        if kept is None or kept.shape[3] < length + width:
            room = length + _ROOM - length % _ROOM if width <= _WIDEST else length
            kept = torch.zeros(1, 1, width, room + width, dtype=shapes.dtype, device=shapes.device)
            kept[..., room:] = _additive(ancestors(tree, width), shapes)
            kept[..., len(tree) :, :room] = torch.finfo(shapes.dtype).min  # padding sees itself alone
        if width <= _WIDEST:
            self._kept.put(shape, kept)
        return kept[..., kept.shape[3] - length - width :]


def _additive(seen: np.ndarray, shapes: Shapes) -> torch.Tensor:
    lowest = torch.finfo(shapes.dtype).min
    # numpy has no bfloat16; float32 holds its lowest value exactly.
    host_dtype = np.float64 if shapes.dtype == torch.float64 else np.float32
    bias = np.where(seen, 0.0, lowest).astype(host_dtype, copy=False)
    return torch.from_numpy(bias).to(shapes.device, shapes.dtype)
