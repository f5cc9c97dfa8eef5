"""Keys and values for passes of fixed shapes: tensors say which slots to write, and a fixed number is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec.backends.cache import RaggedCache, RaggedLayer
from specdec.backends.placement import Placement
from specdec.models.independent_rows import has_kernels


@dataclass(slots=True)
class StaticPlacement(Placement):
    """The next pass writes to ``slots`` (rows, width) of ``rows`` (rows, 1), and reads ``visible`` slots.

    Attributes:
        has_row_numbers: attention finds the pass's rows in the whole buffer by their numbers; all slots are visible.
    """

    rows: torch.Tensor = torch.empty(0)  # noqa: RUF009 - replaced before each pass
    slots: torch.Tensor = torch.empty(0)  # noqa: RUF009 - as above
    visible: int = 0
    has_row_numbers: bool = False


class StaticLayer(RaggedLayer):
    """Keys and values of one layer; a tensor has the slots to write, and a fixed number of slots is read."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        place = self.reserved(key_states, value_states)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[place.rows, :, place.slots] = states.transpose(1, 2)
        return self.visible(len(key_states))

    def reserved(self, key_states: torch.Tensor, value_states: torch.Tensor) -> StaticPlacement:
        """Make room for a pass's keys and values, (rows, heads, width, size), and return where they go."""
        place = self.placement
        assert isinstance(place, StaticPlacement), "a static cache has static placements"
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(place.num_rows, place.num_slots)
        return place

    def visible(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values that a pass over ``num_rows`` rows reads."""
        place = self.placement
        assert isinstance(place, StaticPlacement), "as above"
        if place.has_row_numbers:
            return self.keys, self.values
        rows = slice(place.first, place.first + num_rows)
        return self.keys[rows, :, : place.visible], self.values[rows, :, : place.visible]


class StaticRaggedCache(RaggedCache):
    """Static layers, in which the accepted nodes of all rows move in one launch where Triton runs."""

    def __init__(self, num_layers: int, placement: StaticPlacement) -> None:
        super().__init__(num_layers, StaticLayer, placement, keeps_memory=True)
        self._places: list[tuple[int, torch.Size]] = []
        self._moves: Any = None
        self._waiting: list[tuple[int, int, Sequence[int]]] = []  # a row, and where its slots go
        self._has_kernel = True  # until it fails

    def _gather(self, row: int, slots: Sequence[int], to: int) -> None:
        if self._has_kernel and has_kernels(self._held[0].keys.device):
            self._waiting.append((row, to, slots))
        else:
            super()._gather(row, slots, to)

    def move_waiting(self) -> None:
        """Move what paths have committed since the last call."""
        moves, self._waiting = self._waiting, []
        if not moves:
            return
        buffers = [buffer for layer in self._held for buffer in (layer.keys, layer.values)]
        try:
            from specdec.backends.slot_moves import SlotMoves  # Triton is there with torch for CUDA alone

            if (places := [(each.data_ptr(), each.shape) for each in buffers]) != self._places:
                self._places, self._moves = places, SlotMoves(buffers)
            self._moves.move(moves)
        except Exception:  # Triton's, without a compiler, say
            self._has_kernel = False
            for row, to, slots in moves:
                super()._gather(row, slots, to)
