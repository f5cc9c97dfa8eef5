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
        padded = [(tree, length, width - len(tree)) for tree, length in zip(trees, lengths, strict=True)]
        input_ids = torch.tensor([tree.tokens + [_PADDING_ID] * padding for tree, _, padding in padded])
        positions = np.array(
            [[length + d for d in tree.depths] + [length] * padding for tree, length, padding in padded]
        )
        return Layout(
            lengths=tuple(lengths),
            num_nodes=tuple(map(len, trees)),
            input_ids=input_ids.to(shapes.device),
            positions=torch.from_numpy(positions).to(shapes.device),
            masks=self._masks(trees, lengths, positions, shapes),
            columns=_wanted(trees),
        )

    def _masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        # One node behind everything, or a chain with nothing before it: what models do by themselves.
        is_plain = len(trees) == 1 and (len(trees[0]) == 1 or (trees[0].is_chain and lengths[0] == 0))
        if (is_plain and not any(shapes.attention.values())) or not shapes.takes_trees:
            return {}
        width = positions.shape[1]
        lowest = torch.finfo(shapes.dtype).min
        bias = np.full((len(trees), width, max(lengths) + width), lowest, dtype=_host_dtype(shapes.dtype))
        for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            bias[row, : len(tree), :length] = 0
            bias[row, :, length : length + width][ancestors(tree, width)] = 0
        masks = {}
        for kind, window in shapes.attention.items():
            seen = bias if window is None else np.where(within(window, positions, lengths, bias.shape[2]), bias, lowest)
            masks[kind] = torch.from_numpy(seen).to(shapes.device, shapes.dtype)[:, None]
        return masks


def ancestors(tree: DraftTree, width: int) -> np.ndarray:
    """Entry [i, j]: node j is an ancestor of node i, or i itself; shape (width, width), padding included."""
    closure = np.eye(width, dtype=bool)
    for node in range(1, len(tree)):
        closure[node] |= closure[tree.parents[node]]
    return closure


def within(window: Window, positions: np.ndarray, lengths: Sequence[int], slots: int) -> np.ndarray:
    """Which slots lie inside each node's window, shape (rows, width, slots); decided on positions."""
    slot_positions = np.tile(np.arange(slots), (len(lengths), 1))
    for row, length in enumerate(lengths):
        slot_positions[row, length : length + positions.shape[1]] = positions[row]
    query, key = positions[:, :, None], slot_positions[:, None, :]
    is_inside: np.ndarray = (
        query - key < window.size if window.kind == "sliding" else query // window.size == key // window.size
    )
    return is_inside


def _host_dtype(dtype: torch.dtype) -> type[np.floating]:
    """numpy has no bfloat16; float32 holds its lowest value exactly."""
    return np.float64 if dtype == torch.float64 else np.float32


def _wanted(trees: Sequence[DraftTree]) -> tuple[int, ...]:
    """Roots, candidates and probes of any row: nothing else's logits are ever read."""
    wanted = {0}
    for tree in trees:
        wanted.update(tree.nodes_with(Role.CANDIDATE | Role.PROBE))
    return tuple(sorted(wanted))
