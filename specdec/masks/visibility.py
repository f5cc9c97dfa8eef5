"""Visibility of slots to the nodes of a pass, as boolean arrays; all compilers derive their masks from these."""

from collections.abc import Sequence

import numpy as np

from specdec.layout import Shapes, Window
from specdec.tree import DraftTree


def needs_no_mask(trees: Sequence[DraftTree], lengths: Sequence[int], width: int, shapes: Shapes) -> bool:
    """Return True if the model's own causal mask serves a pass.

    It serves a single row in a model without windows: one node after the committed slots, or a chain at the start.
    """
    is_plain = len(trees) == 1 and (width == 1 or (trees[0].is_chain and lengths[0] == 0))
    return is_plain and not any(shapes.attention.values())


def visibility(trees: Sequence[DraftTree], lengths: Sequence[int], width: int) -> np.ndarray:
    """Return which slots each node sees without windows, ``(rows, width, slots)``; a padding node sees only itself."""
    visible = np.zeros((len(trees), width, max(lengths) + width), dtype=bool)
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        visible[row, : len(tree), :length] = True
        visible[row, :, length : length + width] = ancestors(tree, width)
    return visible


def ancestors(tree: DraftTree, width: int) -> np.ndarray:
    """Return the ancestor matrix: entry [i, j] is True if node j is an ancestor of node i, or i itself.

    Shape ``(width, width)``, padding included.
    """
    closure = np.eye(width, dtype=bool)
    for node in range(1, len(tree)):
        closure[node] |= closure[tree.parents[node]]
    return closure


def within(window: Window, positions: np.ndarray, lengths: Sequence[int], slots: int) -> np.ndarray:
    """Return which slots are in each node's window, ``(rows, width, slots)``, by their positions."""
    slot_positions = np.tile(np.arange(slots), (len(lengths), 1))
    for row, length in enumerate(lengths):
        slot_positions[row, length : length + positions.shape[1]] = positions[row]
    is_inside: np.ndarray = window.contains(positions[:, :, None], slot_positions[:, None, :])
    return is_inside


def first_seen(window: Window | None, positions: np.ndarray) -> np.ndarray:
    """Return the position of the earliest token that each node sees, in the shape of ``positions``."""
    if window is None:
        return np.zeros_like(positions)
    first: np.ndarray = (
        np.maximum(0, positions - window.size + 1)
        if window.kind == "sliding"
        else positions // window.size * window.size
    )
    return first
