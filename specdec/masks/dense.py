"""One additive mask per kind of attention layer: the form every kernel takes, and the oracle of the others."""

from collections.abc import Sequence

import numpy as np
import torch

from specdec.layout import Layout, Shapes, Window
from specdec.masks.base import MaskCompiler
from specdec.tree import DraftTree, Role

_PADDING_ID = 0


class DenseCompiler(MaskCompiler):
    """Masks of shape (rows, 1, width, slots) in the model's dtype: 0 where visible, its lowest value elsewhere."""

    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        width = max(map(len, trees))
        input_ids = np.full((len(trees), width), _PADDING_ID)
        positions = np.empty((len(trees), width), dtype=np.int64)
        for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            input_ids[row, : len(tree)] = tree.tokens
            positions[row] = length
            positions[row, : len(tree)] += tree.depths
        return Layout(
            lengths=tuple(lengths),
            num_nodes=tuple(map(len, trees)),
            input_ids=torch.from_numpy(input_ids).to(shapes.device),
            positions=torch.from_numpy(positions).to(shapes.device),
            masks=self._masks(trees, lengths, positions, shapes),
            columns=_wanted(trees),
        )

    def _masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        if len(trees) == len(trees[0]) == 1 and not any(shapes.attention.values()):
            return {}  # one node and no window: everything is visible
        width = positions.shape[1]
        slots = max(lengths) + width
        visible = np.zeros((len(trees), width, slots), dtype=bool)
        slot_positions = np.broadcast_to(np.arange(slots), (len(trees), slots)).copy()
        for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            visible[row, : len(tree), :length] = True
            visible[row, :, length : length + width] = ancestors(tree, width)
            slot_positions[row, length : length + width] = positions[row]
        lowest = torch.finfo(shapes.dtype).min
        masks = {}
        for kind, window in shapes.attention.items():
            seen = visible if window is None else visible & within(window, positions, slot_positions)
            hidden = torch.from_numpy(~seen)
            mask = torch.zeros(seen.shape, dtype=shapes.dtype).masked_fill_(hidden, lowest)
            masks[kind] = mask[:, None].to(shapes.device)
        return masks


def ancestors(tree: DraftTree, width: int) -> np.ndarray:
    """Entry [i, j]: node j is an ancestor of node i, or i itself; shape (width, width), padding included."""
    closure = np.eye(width, dtype=bool)
    for node in range(1, len(tree)):
        closure[node] |= closure[tree.parents[node]]
    return closure


def within(window: Window, positions: np.ndarray, slot_positions: np.ndarray) -> np.ndarray:
    """Which slots lie inside each node's window, shape (rows, width, slots)."""
    query, key = positions[:, :, None], slot_positions[:, None, :]
    is_inside: np.ndarray = (
        query - key < window.size if window.kind == "sliding" else query // window.size == key // window.size
    )
    return is_inside


def _wanted(trees: Sequence[DraftTree]) -> tuple[int, ...]:
    """Roots, candidates and probes of any row: nothing else's logits are ever read."""
    wanted = {0}
    for tree in trees:
        wanted.update(tree.nodes_with(Role.CANDIDATE | Role.PROBE))
    return tuple(sorted(wanted))
