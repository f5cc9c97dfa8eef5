"""The output of a pass shared by ranks, fetched from them on demand; mostly ids, which are few bytes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec.backends import Output
from specdec_distributed.rank_worker import SPOILED, Place

Ask = Callable[..., dict[Place, Any]]


class SharedOutput(Output):
    """An output distributed over ranks: each rank has the nodes that it owns.

    Args:
        own: rank 0's output.
        num_rows, columns: of the whole pass.
        ask: calls a method of every rank's worker by name, and merges the returned dicts.
    """

    def __init__(self, own: Output, num_rows: int, columns: Sequence[int], ask: Ask) -> None:
        super().__init__(own.logits, columns)
        self._num_rows, self._columns, self._ask = num_rows, columns, ask

    def top_ids(self, row: int) -> list[int]:
        if self._ids is None:
            found = self._ask("ids", self.num_top)
            spoiled = {row for row, node in found if node == SPOILED}
            self._ids = [
                [min(id_, ~id_) if row in spoiled and id_ is not None else id_ for id_ in ids]
                for row, ids in enumerate(self._whole(found))
            ]
        return self._ids[row]

    def top(self, k: int) -> tuple[list[Any], list[Any]]:
        if k not in self._top:
            self._top[k] = self._both(self._ask("top", k))
        return self._top[k]

    def top_logits(self, k: int) -> tuple[list[Any], list[Any]]:
        if k not in self._top_logits:
            self._top_logits[k] = self._both(self._ask("top_logits", k))
        return self._top_logits[k]

    def fetch(self, places: Sequence[tuple[int, int]]) -> None:
        missing = [place for place in places if place not in self._fetched]
        if missing:
            self._fetched.update(self._ask("logits", missing))

    def at(self, row: int, node: int) -> torch.Tensor:
        self.fetch([(row, node)])
        return self._fetched[row, node]

    def take_hidden(self, layers: Sequence[int], width: int) -> None:
        """Gather the hidden states of the pass's layers, (rows, width, layers, size)."""
        if not layers:
            return
        found = self._ask("hidden")
        any_state = next(iter(found.values()))
        states = any_state.new_zeros(self._num_rows, width, *any_state.shape)
        for (row, node), state in found.items():
            states[row, node] = state
        self.hidden, self.layers = states.to(self.logits.device), tuple(layers)

    def _whole(self, found: dict[Place, Any]) -> list[Any]:
        """Arrange values by row and column; None if a row has no such node."""
        return [[found.get((row, node)) for node in self._columns] for row in range(self._num_rows)]

    def _both(self, found: dict[Place, tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
        halves = [self._whole({place: each[half] for place, each in found.items()}) for half in (0, 1)]
        return halves[0], halves[1]
