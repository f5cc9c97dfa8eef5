"""The inputs of a cache's rows, such as images, and the arguments of passes that follow from it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specdec.backends.placement import RowTokens
from specdec.inputs.base import PassPart, PromptInputs, bytes_of_rows
from specdec.layout import Layout

NO_ARGUMENTS: Mapping[str, Any] = {}


class RowInputs:
    """The inputs of a cache's rows; rows of text alone have none."""

    def __init__(self) -> None:
        self._by_row: dict[int, PromptInputs] = {}

    def set(self, row: int, inputs: PromptInputs | None) -> None:
        """Set a row's inputs."""
        self._by_row.pop(row, None)
        if inputs is not None:
            self._by_row[row] = inputs

    def release(self, row: int, last: int) -> None:
        """Drop a closed row's inputs; the last row gets its number."""
        moved = self._by_row.pop(last, None)
        if row != last:
            self.set(row, moved)

    @property
    def row_bytes(self) -> int:
        """Bytes that each row's inputs take."""
        return bytes_of_rows([*self._by_row.values()]) // max(1, len(self._by_row))

    def offsets(self, layout: Layout) -> list[int]:
        """Return by row what the model's positions are ahead of those of a pass; [] if none is."""
        return _offsets(self._of(layout))

    def arguments(self, layout: Layout, device: torch.device) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Return the positions of a pass, and the arguments of its rows' inputs, which are on a device."""
        if not self._by_row:
            return layout.positions, NO_ARGUMENTS
        found = self._of(layout)
        if not _are_read(found, layout.lengths):
            return _ahead(layout.positions, found), NO_ARGUMENTS
        rows = zip(layout.lengths, layout.num_nodes, layout.input_ids, strict=True)
        parts = [
            RowTokens(number, length, ids[:num_nodes].tolist())
            for number, (length, num_nodes, ids) in enumerate(rows, layout.first)
        ]
        return self.arguments_of(parts, layout.positions, device)

    def arguments_of(
        self, parts: Sequence[RowTokens], positions: torch.Tensor, device: torch.device
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Return the positions of a pass over some rows, and the arguments of their inputs, which are on a device."""
        found = [self._by_row.get(part.row) for part in parts]
        positions = _ahead(positions, found)
        if not _are_read(found, [part.start for part in parts]):
            return positions, NO_ARGUMENTS
        positions = positions.to(device)
        passed = [
            PassPart(inputs, number, part.start, part.tokens)
            for number, (inputs, part) in enumerate(zip(found, parts, strict=True))
        ]
        kind = next(type(inputs) for inputs in found if inputs is not None)
        return positions, kind.arguments(passed, positions)

    def _of(self, layout: Layout) -> list[PromptInputs | None]:
        """Return the inputs of a pass's rows."""
        return [self._by_row.get(row) for row in range(layout.first, layout.first + len(layout.lengths))]


def _are_read(found: Sequence[PromptInputs | None], starts: Sequence[int]) -> bool:
    """Return True if a pass from these positions on has arguments."""
    return any(inputs is not None and inputs.is_read_at(start) for inputs, start in zip(found, starts, strict=True))


def _offsets(found: Sequence[PromptInputs | None]) -> list[int]:
    offsets = [0 if inputs is None else inputs.offset for inputs in found]
    return offsets if any(offsets) else []


def _ahead(positions: torch.Tensor, found: Sequence[PromptInputs | None]) -> torch.Tensor:
    """Return the model's positions of a pass, ``(rows, width)``."""
    offsets = _offsets(found)
    return positions + torch.tensor(offsets, device=positions.device)[:, None] if offsets else positions
