"""The cache slots that a node's exact attention sums over, in two parts: a closed region, and the open slots around it.

The bits of a sum depend on the order of its terms, and a tree's order isn't plain decoding's: other branches' slots
lie between a node and its ancestors. Far enough back there is no such difference. The closed region is the whole blocks
of slots that end at least ``OPEN`` positions before the node, hence before the root of any tree that is no deeper.
Which blocks these are follows from the node's position alone, and in plain decoding and in every tree they hold the
same tokens in the same slots, all of them visible: one sum in one order serves all. The open slots are the rest of what
the node sees, in an order that differs. The kernel sums them exactly, and an exact sum is the same in any order.

Example: at position 250 a node sees the positions 0 … 250. The blocks that end by 250 - ``OPEN`` are slots 0 … 191, its
closed region. In plain decoding slots 192 … 250 are open. As a node at depth 10 of a tree after 240 committed tokens
it may lie in slot 275: then 192 … 275 are open, 25 of them hidden from it, and the others hold the same 59 tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

ATTENTION = "specdec_exact"  # the name under which transformers knows the attention that reads regions
BLOCK = 64
OPEN = 32  # no tree is deeper
_LEAST_CLOSED = 128  # shorter regions cost more as a part of their own than they save


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes of one row that share their closed region.

    ``closed`` and ``open`` are cache slots; the open ones may lie on both sides of the closed. ``hidden``: -inf where a
    node doesn't see an open slot, else 0, (nodes, open slots).
    """

    row: int
    nodes: slice | torch.Tensor
    closed: slice
    open: tuple[slice, ...]
    hidden: torch.Tensor
    _biases: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)  # all layers of a pass share them

    def bias(self, num_heads: int, num_rows: int, num_slots: int) -> torch.Tensor:
        """``hidden`` once for each head, one below the other, (num_rows, num_slots): further slots are hidden, too."""
        key = num_heads, num_rows, num_slots
        if key not in self._biases:
            nodes, slots = self.hidden.shape
            bias = self.hidden.new_zeros(num_rows, num_slots)
            bias[: num_heads * nodes, :slots] = self.hidden.repeat(num_heads, 1)
            bias[:, slots:] = -torch.inf
            self._biases[key] = bias
        return self._biases[key]

    def take_open(self, states: torch.Tensor) -> torch.Tensor:
        """The open slots' keys or values, (groups, slots, head size)."""
        if len(self.open) == 1:
            return states[:, self.open[0]]
        return torch.cat([states[:, piece] for piece in self.open], 1)


def closed_region(first: int, position: int, offset: int = 0) -> slice:
    """The closed region of a node that sees the positions from ``first`` to its own; empty where it would be short.

    ``offset`` is the position that slot 0 holds.
    """
    start = -(-first // BLOCK) * BLOCK
    stop = (position - OPEN) // BLOCK * BLOCK
    return slice(start - offset, stop - offset) if stop - start >= _LEAST_CLOSED else slice(0, 0)


def regions_of(
    row: int, seen: np.ndarray, positions: np.ndarray, device: torch.device, offset: int = 0
) -> Iterator[Region]:
    """The regions of one row's nodes.

    Args:
        row: the row of the batch.
        seen: which slots each node sees, (nodes, slots); committed slots in the order of positions.
        positions: the nodes' own, (nodes,).
        device: where to put what the attention reads.
        offset: the position that slot 0 holds.
    """
    # Where that is a node, its position is an earlier one: so little is seen that there is no closed region either way.
    first = (seen.argmax(axis=1) + offset).tolist()
    by_closed: dict[tuple[int, int], list[int]] = {}
    for node, (begin, position) in enumerate(zip(first, positions.tolist(), strict=True)):
        closed = closed_region(begin, position, offset)
        by_closed.setdefault((closed.start, closed.stop), []).append(node)
    for ends, nodes in by_closed.items():
        yield _region(row, nodes, seen[nodes], slice(*ends), device)


def _region(row: int, nodes: list[int], seen: np.ndarray, closed: slice, device: torch.device) -> Region:
    """``seen``: which slots these nodes see, (nodes, slots)."""
    if not seen[:, closed].all():  # deeper than OPEN below a root: right, but no longer the same bits
        closed = slice(0, 0)
    begin = int(seen.argmax(axis=1).min())
    end = seen.shape[1] - int(seen[-1, ::-1].argmax())  # of these nodes the last one lies last
    pieces = slice(begin, closed.start), slice(max(begin, closed.stop), end)
    open_slots = tuple(piece for piece in pieces if piece.start < piece.stop)
    seen_open = np.concatenate([seen[:, piece] for piece in open_slots], axis=1)
    hidden = np.where(seen_open, np.float32(0.0), np.float32(-np.inf))
    is_run = len(nodes) == nodes[-1] - nodes[0] + 1
    where = slice(nodes[0], nodes[-1] + 1) if is_run else torch.tensor(nodes, device=device)
    return Region(row, where, closed, open_slots, torch.from_numpy(hidden).to(device))


def with_regions(mask: torch.Tensor, regions: Iterable[Region]) -> torch.Tensor:
    """The mask, carrying its regions: all layers of a pass share them."""
    mask.regions = tuple(regions)  # type: ignore[attr-defined]  # it has now
    return mask


def seen_in(regions: Iterable[Region], shape: Sequence[int]) -> torch.Tensor:
    """Return which slots nodes see by their regions, boolean, in the shape (rows, width, slots)."""
    seen = torch.zeros(*shape, dtype=torch.bool)
    for region in regions:
        slots = torch.cat([torch.arange(piece.start, piece.stop) for piece in region.open])
        own = seen[region.row, region.nodes]
        own[:, region.closed] = True
        own[:, slots] = region.hidden.cpu() == 0
        seen[region.row, region.nodes] = own
    return seen


def found_regions(mask: torch.Tensor, offset: int = 0) -> Iterator[Region]:
    """The regions of a boolean mask, (rows, 1, width, slots), whose slot 0 holds a given position.

    What a node sees has no gaps in positions, so that its own follows from the first slot and their number.
    """
    for row, seen in enumerate(mask[:, 0].cpu().numpy()):
        positions = offset + seen.argmax(axis=1) + np.count_nonzero(seen, axis=1) - 1
        yield from regions_of(row, seen, positions, mask.device, offset)
