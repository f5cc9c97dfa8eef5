"""The cache slots that a node's exact attention sums over: a closed region, and the open slots around it.

The closed region depends on the node's position alone, so it is the same, with the same keys and values in the same
order, for plain decoding and for a node of any draft tree. It ends at least ``OPEN`` positions before the node, hence
before the root of any tree that is no deeper, and its ends are multiples of ``BLOCK``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

ATTENTION = "specdec_exact"  # the name under which transformers knows the attention that reads regions
BLOCK = 64
OPEN = 32
_LEAST_CLOSED = 128  # shorter regions cost more as a part of their own than they save
# With fewer columns the scores' product takes another way through the libraries, with other bits.
_FEWEST_SLOTS = 32


_Positions = TypeVar("_Positions", int, np.ndarray)


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes of one row that share their closed region.

    ``closed`` and ``open`` are cache slots; the open ones may lie on both sides of the closed. ``hidden``: -inf where a
    node doesn't see an open slot, else 0, (nodes, open slots); it has more columns than slots where those are few.
    """

    row: int
    nodes: slice | torch.Tensor
    closed: slice
    open: tuple[slice, ...]
    hidden: torch.Tensor
    _biases: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # all layers of a pass share them

    def bias(self, num_heads: int, row_multiple: int) -> torch.Tensor:
        """``hidden`` for each of some heads, one below the other, and zeros below up to a multiple of rows."""
        if (num_heads, row_multiple) not in self._biases:
            bias = self.hidden.repeat(num_heads, 1)
            missing = -len(bias) % row_multiple
            self._biases[num_heads, row_multiple] = torch.nn.functional.pad(bias, (0, 0, 0, missing))
        return self._biases[num_heads, row_multiple]

    def take_open(self, states: torch.Tensor) -> torch.Tensor:
        """The open slots' keys or values, (groups, slots, head size), with zeros behind them where they are few."""
        if len(self.open) == 1:
            chosen = states[:, self.open[0]]
        else:
            chosen = torch.cat([states[:, part] for part in self.open], 1)
        missing = self.hidden.shape[1] - chosen.shape[1]
        return torch.nn.functional.pad(chosen, (0, 0, 0, missing)) if missing else chosen


def regions_of(
    row: int, visible: np.ndarray, first: np.ndarray, positions: np.ndarray, device: torch.device, offset: int = 0
) -> Iterator[Region]:
    """The regions of one row's nodes.

    Args:
        row: the row of the batch.
        visible: which slots each node sees, (nodes, slots); committed slots in the order of positions.
        first, positions: of the earliest token that a node sees, and its own, (nodes,); less ``offset``.
        device: where to put what the attention reads.
        offset: the position that slot 0 holds.
    """
    start, stop = _closed(first, positions, offset)
    if (start == start[0]).all() and (stop == stop[0]).all():
        yield _region(
            row, np.arange(len(visible)), visible, int(first.min()), slice(int(start[0]), int(stop[0])), device
        )
        return
    ends = list(zip(start.tolist(), stop.tolist(), strict=True))
    for shared in sorted(set(ends)):
        nodes = np.array([node for node, own in enumerate(ends) if own == shared])
        yield _region(row, nodes, visible[nodes], int(first[nodes].min()), slice(*shared), device)


def closed_behind(length: int, max_depth: int) -> slice | None:
    """The closed region of a whole tree behind so many committed slots, where no window limits what it sees.

    None where it isn't the same for all nodes, or where the slots are so few that they need columns beyond themselves.
    """
    (_, stop), (_, deepest) = _closed(0, length), _closed(0, length + max_depth)
    return slice(0, stop) if stop == deepest and length >= _FEWEST_SLOTS else None


def _closed(first: _Positions, positions: _Positions, offset: int = 0) -> tuple[_Positions, _Positions]:
    """Return the start and stop of a node's closed region, both 0 where it has none; of each node's, given arrays."""
    start = -(-(first + offset) // BLOCK) * BLOCK - offset
    stop = (positions + offset - OPEN) // BLOCK * BLOCK - offset
    has_closed = stop - start >= _LEAST_CLOSED
    return start * has_closed, stop * has_closed


def _region(row: int, nodes: np.ndarray, seen: np.ndarray, begin: int, closed: slice, device: torch.device) -> Region:
    if not seen[:, closed].all():  # deeper than OPEN below a root: right, but no longer the same bits
        closed = slice(0, 0)
    end = seen.shape[1] - int(seen[-1, ::-1].argmax())  # of these nodes the last one lies last
    pieces = (slice(begin, closed.start), slice(closed.stop, end)) if closed.stop else (slice(begin, end),)
    open_slots = tuple(piece for piece in pieces if piece.stop > piece.start)
    sees = seen[:, open_slots[0]] if len(open_slots) == 1 else np.concatenate([seen[:, s] for s in open_slots], axis=1)
    missing = max(0, _FEWEST_SLOTS - sees.shape[1])
    hidden = np.full((len(nodes), sees.shape[1] + missing), -np.inf, dtype=np.float32)
    hidden[:, : sees.shape[1]][sees] = 0.0
    is_run = len(nodes) == nodes[-1] - nodes[0] + 1
    where = slice(int(nodes[0]), int(nodes[-1]) + 1) if is_run else torch.from_numpy(nodes).to(device)
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
        own[:, slots] = region.hidden[:, : len(slots)].cpu() == 0
        seen[region.row, region.nodes] = own
    return seen


def found_regions(mask: torch.Tensor, offset: int = 0) -> Iterator[Region]:
    """The regions of a boolean mask, (rows, 1, width, slots), whose slot 0 holds a given position.

    What a node sees has no gaps in positions, so that its own follows from the first slot and their number.
    """
    for row, visible in enumerate(mask[:, 0].cpu().numpy()):
        first = visible.argmax(axis=1)
        positions = first + np.count_nonzero(visible, axis=1) - 1
        yield from regions_of(row, visible, first, positions, mask.device, offset)
