"""The paged cache: keys and values of all layers in blocks, and each row's block table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch

_LEAST = 16  # initial number of blocks
_MOST_KEPT = 64  # blocks without rows


@dataclass(slots=True)
class BlockRow:
    """A row: its blocks, and the number of its committed slots."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0


class Blocks:
    """Keys and values, (layers, blocks, heads, slots, width) for each run of layers of one shape; rows share no block.

    Args:
        shapes: the caches' shapes in the order of the graph's inputs, (heads, slots of a block, width) each.
        dtype: of the caches.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype) -> None:
        self._shapes, self._dtype = shapes, dtype
        self.size = shapes[0][1]
        self.rows: list[BlockRow] = []
        self._free: list[int] = []
        self._num_blocks = 0
        self._buffers: list[torch.Tensor] = []
        self.generation = 0  # changes with every move to larger buffers

    def caches(self) -> list[torch.Tensor]:
        """A view of each cache, (blocks, heads, slots, width), in the order of the graph's inputs."""
        views: list[torch.Tensor | None] = [None] * len(self._shapes)
        for shape, buffer in zip(self._groups(), self._buffers, strict=True):
            for view, number in zip(buffer, self._groups()[shape], strict=True):
                views[number] = view
        return [view for view in views if view is not None]

    def open(self) -> None:
        """Open an empty row, with the next number."""
        self.rows.append(BlockRow())

    def reserve(self, row: int, num_slots: int) -> None:
        """Allocate blocks for ``num_slots`` slots of a row."""
        held = self.rows[row].blocks
        missing = -(-num_slots // self.size) - len(held)
        if missing > len(self._free):
            self._grow(self._num_blocks + missing - len(self._free))
        held += [self._free.pop() for _ in range(missing)]

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Commit a path of the nodes after a row's committed slots, in place."""
        own = self.rows[row]
        moved = [(own.length + node, own.length + to) for to, node in enumerate(path) if to != node]
        own.length += len(path)
        if moved:
            sources, destinations = (self._places(own, slots) for slots in zip(*moved, strict=True))
            for buffer in self._buffers:  # gathering copies first, so the order doesn't matter
                buffer[:, destinations[0], :, destinations[1]] = buffer[:, sources[0], :, sources[1]]

    def rollback(self, row: int, length: int) -> None:
        """Roll a row back to ``length`` slots; it retains its blocks."""
        self.rows[row].length = length

    def release(self, row: int) -> None:
        """Close a row and free its blocks; the last row takes its number.

        After the last row, memory is freed except for a short text's; ``is_empty`` is then True.
        """
        self._free += self.rows[row].blocks
        self.rows[row] = self.rows[-1]
        del self.rows[-1]
        if not self.rows and self._num_blocks > _MOST_KEPT:
            self._free, self._num_blocks, self._buffers = [], 0, []
            self.generation += 1

    @property
    def is_empty(self) -> bool:
        """True while no memory beyond a short text's is allocated."""
        return not self._buffers

    def clear(self, row: int) -> None:
        """Overwrite the slots after a row's committed ones."""
        own = self.rows[row]
        slots = range(own.length, len(own.blocks) * self.size)
        if slots:
            blocks, offsets = self._places(own, slots)
            for buffer in self._buffers:
                buffer[:, blocks, :, offsets] = 0

    def bytes_for(self, capacities: Sequence[int]) -> int:
        """Return the bytes allocated once rows of these capacities are open; for no capacities, those allocated now."""
        needed = sum(-(-capacity // self.size) + 1 for capacity in capacities)
        return max(needed, self._num_blocks) * self.block_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, all layers together."""
        return sum(heads * slots * width for heads, slots, width in self._shapes) * self._dtype.itemsize

    def _places(self, row: BlockRow, slots: Sequence[int] | range) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the blocks of some slots, and the places in the blocks."""
        pairs = [(row.blocks[slot // self.size], slot % self.size) for slot in slots]
        blocks, offsets = zip(*pairs, strict=True)
        return torch.tensor(blocks), torch.tensor(offsets)

    def _groups(self) -> dict[tuple[int, int, int], list[int]]:
        numbered = sorted(range(len(self._shapes)), key=lambda number: self._shapes[number])
        return {shape: list(numbers) for shape, numbers in groupby(numbered, key=lambda number: self._shapes[number])}

    def _grow(self, least: int) -> None:
        """Move to buffers of at least ``least`` blocks; they grow by half, so moves are rare."""
        held = self._num_blocks
        grown = max(least, _LEAST, held + held // 2)
        buffers = []
        for index, (shape, numbers) in enumerate(self._groups().items()):
            heads, slots, width = shape
            # By numpy, whose zeros take no memory before they are written to.
            raw = np.zeros((len(numbers), grown, heads, slots, width * self._dtype.itemsize), np.uint8)
            buffer = torch.from_numpy(raw).view(self._dtype)
            if held:
                buffer[:, :held] = self._buffers[index]
            buffers.append(buffer)
        self._buffers, self._num_blocks = buffers, grown
        self._free += range(grown - 1, held - 1, -1)
        self.generation += 1
