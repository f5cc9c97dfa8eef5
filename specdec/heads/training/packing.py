"""Documents packed into rows of one length, so that every batch has the same shape and little padding."""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.heads.training.text import TrainingText


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of several documents each; padding is a document of its own, numbered -1.

    Attributes:
        tokens: (rows, length).
        documents: (rows, length) numbers of the documents.
        positions: (rows, length) within each document.
        is_answer: (rows, length) True for tokens of answers.
    """

    tokens: torch.Tensor
    documents: torch.Tensor
    positions: torch.Tensor
    is_answer: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> "PackedRows":
        return PackedRows(self.tokens[rows], self.documents[rows], self.positions[rows], self.is_answer[rows])

    def to(self, device: torch.device | str) -> "PackedRows":
        """Copy the rows to a device."""
        parts = (self.tokens, self.documents, self.positions, self.is_answer)
        return PackedRows(*(part.to(device, non_blocking=True) for part in parts))

    @property
    def num_answer_tokens(self) -> int:
        return int(self.is_answer.sum())

    def visible(self) -> torch.Tensor:
        """Return (rows, length, length), True where a position sees another: causally, in its own document."""
        length = self.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        return (self.documents[:, :, None] == self.documents[:, None, :]) & causal


def pack(text: TrainingText, length: int, generator: np.random.Generator) -> PackedRows:
    """Pack documents into rows by best fit, in random order; longer documents are cut to ``length``.

    The rows come in random order too.
    """
    lengths = np.minimum(np.diff(text.offsets), length)
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for index in generator.permutation(len(text)).tolist():
        size = int(lengths[index])
        place = bisect_left(rooms, (size, -1))
        if place < len(rooms):
            room, row = rooms.pop(place)
        else:
            room, row = length, len(rows)
            rows.append([])
        rows[row].append(index)
        if room > size:
            insort(rooms, (room - size, row))
    order = generator.permutation(len(rows))
    return _filled(text, [rows[row] for row in order], lengths, length)


def _filled(text: TrainingText, rows: list[list[int]], lengths: NDArray[np.int64], length: int) -> PackedRows:
    shape = len(rows), length
    tokens, documents, positions = np.zeros(shape, np.int64), np.full(shape, -1, np.int32), np.zeros(shape, np.int64)
    positions[:] = np.arange(length)
    is_answer = np.zeros(shape, bool)
    for row, indices in enumerate(rows):
        start = 0
        for index in indices:
            size = int(lengths[index])
            stop = start + size
            tokens[row, start:stop] = text.document(index)[:size]
            documents[row, start:stop] = index
            positions[row, start:stop] = np.arange(size)
            is_answer[row, start + int(text.answers[index]) : stop] = True
            start = stop
    return PackedRows(*map(torch.from_numpy, (tokens, documents, positions, is_answer)))
