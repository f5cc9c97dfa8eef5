"""The cache slots of a node's exact attention, in two parts: a closed region, and the open slots around it.

The bits of a sum depend on the order of its terms, and a tree's order differs from plain decoding's: slots of other
branches lie between a node and its ancestors. Far enough back there is no difference. The closed region consists of the
whole blocks of slots that end at least ``OPEN`` positions before the node, and so before the root of any tree that
isn't deeper. It depends on the node's position alone: in plain decoding and in every tree, these blocks contain the
same tokens in the same slots, all visible, and are summed in the same order. The open slots are the rest of what the
node sees, in an order that differs. The kernel sums them exactly, so their order doesn't matter.

Example: at position 250 a node sees the positions 0 … 250. The blocks that end by 250 - ``OPEN`` are slots 0 … 191, its
closed region. In plain decoding slots 192 … 250 are open. As a node at depth 10 of a tree after 240 committed tokens,
it may be in slot 275: then 192 … 275 are open, 25 of them hidden from it, and the others hold the same 59 tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

ATTENTION = "specdec_exact"  # transformers' name of the attention that reads regions
BLOCK = 64
OPEN = 32  # no tree is deeper
_LEAST_CLOSED = 128  # shorter regions cost more as a part of their own than they save


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes of one row that have the same closed region.

    Attributes:
        closed, open: cache slots; open slots may be on both sides of the closed ones.
        hidden: -inf if a node doesn't see an open slot, else 0, ``(nodes, open slots)``.
    """

    row: int
    nodes: slice | torch.Tensor
    closed: slice
    open: tuple[slice, ...]
    hidden: torch.Tensor
    _biases: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)  # all layers of a pass share them

    def bias(self, num_heads: int, num_rows: int, num_slots: int) -> torch.Tensor:
        """Return ``hidden`` repeated for each head, ``(num_rows, num_slots)``; padding slots are hidden."""
        key = num_heads, num_rows, num_slots
        if key not in self._biases:
            nodes, slots = self.hidden.shape
            bias = self.hidden.new_zeros(num_rows, num_slots)
            bias[: num_heads * nodes, :slots] = self.hidden.repeat(num_heads, 1)
            bias[:, slots:] = -torch.inf
            self._biases[key] = bias
        return self._biases[key]

    def take_open(self, states: torch.Tensor) -> torch.Tensor:
        """Return the open slots' keys or values, ``(groups, slots, head size)``."""
        if len(self.open) == 1:
            return states[:, self.open[0]]
        return torch.cat([states[:, piece] for piece in self.open], 1)


def closed_region(first: int, position: int, offset: int = 0) -> slice:
    """Return the closed region of a node that sees the positions from ``first`` to its own; empty if it is short.

    ``offset`` is the position of slot 0.
    """
    start = -(-first // BLOCK) * BLOCK
    stop = (position - OPEN) // BLOCK * BLOCK
    return slice(start - offset, stop - offset) if stop - start >= _LEAST_CLOSED else slice(0, 0)


def regions_of(
    row: int, seen: np.ndarray, positions: np.ndarray, device: torch.device, offset: int = 0
) -> Iterator[Region]:
    """Return the regions of one row's nodes.

    Args:
        row: the row of the batch.
        seen: which slots each node sees, ``(nodes, slots)``; committed slots in the order of positions.
        positions: the nodes' positions, ``(nodes,)``.
        device: the device of the tensors that attention reads.
        offset: the position of slot 0.
    """
    # If that slot is a node's, its position is smaller; so few slots are seen that there is no closed region anyway.
    first = (seen.argmax(axis=1) + offset).tolist()
    by_closed: dict[tuple[int, int], list[int]] = {}
    for node, (begin, position) in enumerate(zip(first, positions.tolist(), strict=True)):
        closed = closed_region(begin, position, offset)
        by_closed.setdefault((closed.start, closed.stop), []).append(node)
    for ends, nodes in by_closed.items():
        yield _region(row, nodes, seen[nodes], slice(*ends), device)


def _region(row: int, nodes: list[int], seen: np.ndarray, closed: slice, device: torch.device) -> Region:
    """Return the region of some nodes; ``seen`` are the slots that each sees, ``(nodes, slots)``."""
    if not seen[:, closed].all():  # deeper than OPEN below a root: correct, but without the same bits
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
    """Attach regions to a mask, for all layers of a pass; return the mask."""
    mask.regions = tuple(regions)  # type: ignore[attr-defined]  # it has now
    return mask


def seen_in(regions: Iterable[Region], shape: Sequence[int]) -> torch.Tensor:
    """Return which slots nodes see according to their regions, boolean, ``(rows, width, slots)``."""
    seen = torch.zeros(*shape, dtype=torch.bool)
    for region in regions:
        slots = torch.cat([torch.arange(piece.start, piece.stop) for piece in region.open])
        own = seen[region.row, region.nodes]
        own[:, region.closed] = True
        own[:, slots] = region.hidden.cpu() == 0
        seen[region.row, region.nodes] = own
    return seen


def found_regions(mask: torch.Tensor, offset: int = 0) -> Iterator[Region]:
    """Return the regions of a boolean mask, ``(rows, 1, width, slots)``; slot 0 has position ``offset``.

    A node sees consecutive positions, so its own follows from the first visible slot and their number.
    """
    for row, seen in enumerate(mask[:, 0].cpu().numpy()):
        positions = offset + seen.argmax(axis=1) + np.count_nonzero(seen, axis=1) - 1
        yield from regions_of(row, seen, positions, mask.device, offset)
