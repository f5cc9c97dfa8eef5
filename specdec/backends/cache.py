"""Preallocated keys and values for transformers models: a buffer per layer, rows of different lengths side by side."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from specdec.backends.base import KVBlock
from specdec.backends.placement import Placement, RowTokens, room_for, rounded
from specdec.models.leaf_call import leaf_call

SPARE_SLOTS = 256  # of a row, for draft trees, besides the announced tokens


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values of one layer, ``(rows, heads, slots, width)``; a committed token's slot is its position.

    Slots after a row's nodes contain zeros or values of earlier drafts, which masks hide.
    """

    is_sliding = False
    is_croppable = False
    is_compileable = False

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        self.slot_bytes = 0  # of a token's keys and values; not known before the first pass

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros(0, key_states.shape[1], 0, key_states.shape[3])
        self.values = value_states.new_zeros(0, value_states.shape[1], 0, value_states.shape[3])
        self.slot_bytes = key_states[0, :, 0].nbytes + value_states[0, :, 0].nbytes
        self.is_initialized = True

    @leaf_call
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write each row's nodes after its committed slots; return views of these rows up to the last slot in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, starts = self.placement.first, self.placement.starts
        width = key_states.shape[2]
        slots = max(starts) + width
        self.reserve(max(self.placement.num_rows, first + len(starts)), max(self.placement.num_slots, slots))
        rows = slice(first, first + len(starts))
        if len(starts) == 1:
            self.keys[first, :, starts[0] : slots] = key_states[0]
            self.values[first, :, starts[0] : slots] = value_states[0]
        else:  # in one call, however many rows there are
            lines = self.placement.lines(width, self.keys)
            for buffer, states in ((self.keys, key_states), (self.values, value_states)):
                size = buffer.shape[3]
                buffer.view(-1, size).index_copy_(0, lines, states.transpose(1, 2).reshape(-1, size))
        if self.placement.scattered:
            chosen = torch.tensor(self.placement.scattered, device=self.keys.device)
            return self.keys[:, :, :slots].index_select(0, chosen), self.values[:, :, :slots].index_select(0, chosen)
        return self.keys[rows, :, :slots], self.values[rows, :, :slots]

    def reserve(self, num_rows: int, num_slots: int) -> None:
        """Make room for ``num_rows`` rows of ``num_slots`` slots; in place if the buffers are large enough."""
        rows, heads, slots, _ = self.keys.shape
        if num_rows <= rows and num_slots <= slots:
            return
        grown = slots if num_slots <= slots else rounded(num_slots + SPARE_SLOTS)
        shape = room_for(num_rows, rows), heads, grown
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(*shape, old.shape[3])
            new[:rows, :, :slots] = old
            setattr(self, name, new)

    def gather(self, row: int, slots: torch.Tensor, to: int) -> None:
        """Copy slots to consecutive slots from ``to`` on.

        No destination is after its source, so copying in place is safe.
        """
        for buffer in (self.keys, self.values):
            buffer[row, :, to : to + len(slots)] = buffer[row].index_select(1, slots)

    def shrink(self, num_rows: int, num_slots: int) -> None:
        """Free the memory beyond ``num_rows`` rows and ``num_slots`` slots."""
        self.keys = self.keys[:num_rows, :, :num_slots].clone()
        self.values = self.values[:num_rows, :, :num_slots].clone()

    def move(self, row: int, to: int, num_slots: int) -> None:
        """Copy a row's first slots to another row."""
        for buffer in (self.keys, self.values):
            buffer[to, :, :num_slots] = buffer[row, :, :num_slots]

    def clear(self, row: int, slots: slice) -> None:
        """Clear some of a row's slots, because a mask hides any number except NaN."""
        self.keys[row, :, slots] = 0
        self.values[row, :, slots] = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        self.placement.num_asked += 1
        return max(self.placement.starts) + query_length, 0

    def get_seq_length(self) -> int:
        self.placement.num_asked += 1
        return max(self.placement.starts)

    def get_max_length(self) -> int:
        return -1


class RaggedCache(Cache):  # type: ignore[misc]  # as above
    """One ``RaggedLayer`` per attention layer, and the length of every row.

    Attributes:
        lengths, capacities: by row, the number of committed tokens and the number that it was opened for.
        reached: by row, the end of the slots ever written.
    """

    def __init__(
        self,
        num_layers: int,
        layer: type[RaggedLayer] = RaggedLayer,
        placement: Placement | None = None,
        keeps_memory: bool = False,
    ) -> None:
        self._keeps_memory = keeps_memory
        self.placement = Placement() if placement is None else placement
        self.lengths: list[int] = []
        self.capacities: list[int] = []
        self.reached: list[int] = []
        # Not the next class of a subclass, which may be a cache that makes its own layers.
        Cache.__init__(self, layers=[layer(self.placement) for _ in range(num_layers)])

    def place(self, rows: Sequence[int], starts: Sequence[int], width: int) -> None:
        """Set where the next forward writes: ``width`` nodes of each row, from the row's start slot on."""
        self.placement.move(rows[0], tuple(starts), tuple(rows) if rows[-1] - rows[0] >= len(rows) else ())
        for row, start in zip(rows, starts, strict=True):
            self.reached[row] = max(self.reached[row], start + width)

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Commit a path of the last forward, root first: move its nodes to the front, and drop the rejected ones."""
        start, self.lengths[row] = self.lengths[row], self.lengths[row] + len(path)
        moved = [node for to, node in enumerate(path) if to != node]  # all nodes after the first that moves
        if moved:
            self._gather(row, [start + node for node in moved], self.lengths[row] - len(moved))

    @property
    def _held(self) -> list[RaggedLayer]:
        return [layer for layer in self.layers if layer.is_initialized]

    def _gather(self, row: int, slots: Sequence[int], to: int) -> None:
        sources = torch.tensor(slots, device=self._held[0].keys.device)
        for layer in self._held:
            layer.gather(row, sources, to)

    def passes(self, chains: Sequence[RowTokens]) -> Iterator[Sequence[RowTokens]]:
        """Place the passes over some rows' chains, one after another; yields what each pass reads of which rows."""
        for chain in chains:
            self.place([chain.row], [chain.start], len(chain.tokens))
            yield [chain]

    def pass_context(self) -> AbstractContextManager[None]:
        """Return the context in which the model's pass over chains is run."""
        return nullcontext()

    def num_pending(self, row: int) -> int:
        """Return the committed tokens of a row that its next pass reads again."""
        return 0

    def rollback(self, row: int, length: int) -> None:
        """Drop a row's tokens after the first ``length``; their slots are hidden by masks, and overwritten later."""
        self.lengths[row] = length

    def open(self, capacity: int) -> None:
        """Open the next row; its memory is allocated when the next forward writes."""
        self.lengths.append(0)
        self.capacities.append(capacity)
        self.reached.append(0)
        self.placement.num_rows = max(self.placement.num_rows, len(self.lengths))
        self.placement.num_slots = max(self.placement.num_slots, capacity)

    def expect(self, capacities: Sequence[int]) -> None:
        """Announce rows that will be open together; their memory is allocated when the next forward writes."""
        self.placement.num_rows = max(self.placement.num_rows, len(capacities))
        self.placement.num_slots = max(self.placement.num_slots, *capacities)

    def release(self, row: int) -> None:
        """Close a row; the last row takes its place. If none is left, memory is freed unless the cache retains it."""
        last = len(self.lengths) - 1
        if last or self._keeps_memory:
            self._fill(row, last)
        self.lengths[row], self.capacities[row] = self.lengths[last], self.capacities[last]
        self.reached[row] = self.lengths[last]
        del self.lengths[last], self.capacities[last], self.reached[last]
        if self.lengths:
            return
        held = [layer.keys.shape[::2] for layer in self._held]
        if not self._keeps_memory or not held:
            self.drop()
        else:  # and nothing that was announced in vain, as a row that memory was too small for
            num_rows, num_slots = map(min, zip(*held, strict=True))
            self.placement.num_rows, self.placement.num_slots = num_rows, max(0, num_slots - SPARE_SLOTS)

    def drop(self) -> None:
        """Free all memory, and forget what was announced; no row may be open."""
        self.placement.num_rows, self.placement.num_slots = 1, 0
        for layer in self.layers:
            layer.is_initialized = False
            layer.keys = layer.values = None

    def _fill(self, row: int, last: int) -> None:
        """Move the last row to a free one, and clear the other slots of both."""
        held = self.lengths[last] if row != last else 0
        for layer in self._held:
            num_rows = len(layer.keys)
            if held:
                layer.move(last, row, held)
            if row < num_rows:
                layer.clear(row, slice(held, self.reached[row]))
            if last < num_rows:
                layer.clear(last, slice(0, self.reached[last]))

    def trim(self, rows_for: Callable[[int], int] = int, slots_for: Callable[[int], int] = int) -> bool:
        """Free memory that no open row needs, and return True; return False if there is none.

        Args:
            rows_for, slots_for: by the numbers of open rows and of their slots, the numbers to keep.
        """
        held = self._held
        if not self.lengths or not held:
            return False
        num_rows, longest = rows_for(len(self.lengths)), slots_for(max(*self.capacities, *self.reached))
        num_slots = rounded(longest + SPARE_SLOTS)
        rows, slots = held[0].keys.shape[::2]
        self.placement.num_rows, self.placement.num_slots = num_rows, longest
        if rows <= num_rows and slots <= num_slots:
            return False
        for layer in held:
            layer.shrink(num_rows, num_slots)
        return True

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        """Return copies of each layer's keys and values of some committed tokens, ``(heads, tokens, width)``.

        They are empty for a layer that reads another layer's.
        """
        return KVBlock(
            tuple(
                buffer[row, :, start:stop].clone() if buffer is not None else torch.empty(0)
                for layer in self.layers
                for buffer in (layer.keys, layer.values)
            )
        )

    def append_blocks(self, row: int, held: Sequence[KVBlock]) -> None:
        """Commit the copies that ``copy_block`` returned, in order, after a row's committed tokens."""
        self._put(row, held, sum(each.parts[0].shape[1] for each in held))

    def _put(self, row: int, held: Sequence[KVBlock], num_tokens: int) -> None:
        start, parts = self.lengths[row], [each.parts for each in held]
        end = start + num_tokens
        for number, layer in enumerate(self.layers):
            if not parts[0][2 * number].numel():
                continue
            keys = torch.cat([part[2 * number] for part in parts], 1)
            values = torch.cat([part[2 * number + 1] for part in parts], 1)
            if not layer.is_initialized:
                layer.lazy_initialization(keys[None], values[None])
            layer.reserve(max(self.placement.num_rows, row + 1), max(self.placement.num_slots, end))
            layer.keys[row, :, start:end] = keys
            layer.values[row, :, start:end] = values
        self.lengths[row] = end
        self.reached[row] = max(self.reached[row], end)

    def clear(self, row: int) -> None:
        """Clear the slots after a row's committed ones."""
        for layer in self._held:
            layer.clear(row, slice(self.lengths[row], self.reached[row]))

    def bytes_for(self, capacities: Sequence[int], anew: bool = False) -> int:
        """Return the bytes allocated once rows of these capacities are open, or those allocated now if none are given.

        Buffers never shrink while a row is open, and all rows are as long as the longest. 0 before the first pass.

        Args:
            anew: leave out what is allocated or announced now.
        """
        place = Placement() if anew else self.placement
        rows, slots = next((layer.keys.shape[::2] for layer in self._held if not anew), (0, 0))
        if capacities:
            rows = room_for(max(place.num_rows, len(capacities)), rows)
            longest = max(place.num_slots, *capacities)
            slots = slots if longest <= slots else rounded(longest + SPARE_SLOTS)
        slot_bytes: int = sum(layer.slot_bytes for layer in self.layers)
        return rows * slots * slot_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes held for each row."""
        return sum((layer.keys.nbytes + layer.values.nbytes) // layer.keys.shape[0] for layer in self._held)
