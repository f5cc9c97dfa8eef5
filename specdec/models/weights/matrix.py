"""A weight matrix in memory: packed by a kernel, dense, or both if other code reads its rows."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from specdec.models.weights.base import Kernel


@dataclass(slots=True)
class _Ready:
    """The parts of a joined product that no layer has used yet, and the rows that were multiplied."""

    rows: torch.Tensor
    version: int | None
    parts: list[torch.Tensor | None]

    def part_for(self, rows: torch.Tensor, index: int) -> torch.Tensor | None:
        """Return a part if it was computed from this tensor of rows, unchanged since; else None."""
        return self.parts[index] if self.rows is rows and self.version == _version(rows) else None


class JoinedMatrix:
    """One matrix, or several that receive the same rows, stacked to one: a single product replaces several.

    The first request computes the products of all. The others' are cached, and returned for the same tensor of rows.
    Any other tensor is multiplied again, so nothing depends on the order of calls.

    Args:
        packed: the stack in the kernel's layout.
        heights: the outputs of each matrix.
        row_multiple: rows are padded to a multiple of this number.
    """

    def __init__(
        self,
        kernel: Kernel,
        packed: Any,
        heights: Sequence[int],
        biases: Sequence[torch.Tensor | None],
        row_multiple: int = 1,
    ) -> None:
        self.kernel, self.heights, self.row_multiple = kernel, tuple(heights), row_multiple
        self.is_alone = len(self.heights) == 1
        self._packed, self._biases = packed, list(biases)
        self._ready: _Ready | None = None

    def multiply(self, rows: torch.Tensor, index: int, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product of one of the matrices."""
        if self.is_alone:
            return self._product(rows, bias)
        if bias is not self._biases[index]:
            return linear(rows, self.dense(index), bias)
        ready = self._ready  # other threads may replace it meanwhile
        part = None if ready is None else ready.part_for(rows, index)
        if ready is None or part is None:
            joined = torch.cat([each for each in self._biases if each is not None]) if bias is not None else None
            parts = self._product(rows, joined).split_with_sizes(self.heights, -1)
            self._ready = ready = _Ready(rows, _version(rows), [*parts])
            part = parts[index]
        ready.parts[index] = None
        if all(each is None for each in ready.parts):
            self._ready = None
        return part

    def dense(self, index: int) -> torch.Tensor:
        """Return a copy of one of the matrices."""
        dense = self.kernel.unpack(self._packed)
        return dense if self.is_alone else torch.split(dense, list(self.heights))[index].clone()

    def _product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the kernel's product, with rows padded so that each is independent of the others."""
        if self.row_multiple == 1:
            return self.kernel.multiply(rows, self._packed, bias)
        *shape, width = rows.shape
        count = math.prod(shape)
        if not count % self.row_multiple:
            return self.kernel.multiply(rows, self._packed, bias)
        padded = torch.nn.functional.pad(rows.reshape(count, width), (0, 0, 0, -count % self.row_multiple))
        return self.kernel.multiply(padded, self._packed, bias)[:count].view(*shape, -1)


class Matrix:
    """The numbers of a ``PackedWeight``. Shapes are ``(outputs, inputs)``.

    Args:
        joined, index: the packed form, and which of its matrices this is; None if the matrix is dense.
        kept: the dense matrix, if it is stored: for embeddings, whose rows are looked up, and for unpacked matrices.

    Attributes:
        checksum: of the packed weight in its layer's shape, if known.
    """

    def __init__(self, joined: JoinedMatrix | None, index: int = 0, kept: torch.Tensor | None = None) -> None:
        self._joined, self._index, self._kept = joined, index, kept
        self.checksum: str | None = None

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that multiplies by the matrix; None while it is dense."""
        return None if self._joined is None else self._joined.kernel

    @property
    def is_part(self) -> bool:
        """True while one product multiplies by this matrix and others."""
        return self._joined is not None and not self._joined.is_alone

    @property
    def kind(self) -> Hashable:
        """A key that is equal for matrices whose products are computed in the same way."""
        joined = self._joined
        return None if joined is None else (type(joined.kernel), joined.row_multiple, joined.heights, self._index)

    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product, ``(..., outputs)``, of rows, ``(..., inputs)``."""
        if self._joined is None:
            return linear(rows, self.dense(), bias)
        return self._joined.multiply(rows, self._index, bias)

    def dense(self) -> torch.Tensor:
        """Return the dense matrix, read-only: a copy if it is packed, else the stored one."""
        if self._kept is not None:
            return self._kept
        assert self._joined is not None
        return self._joined.dense(self._index)

    def make_dense(self, is_transposed: bool) -> torch.Tensor:
        """Drop the packed form and return the dense matrix, which products read from now on; callers may write to it.

        Args:
            is_transposed: make the matrix such that its transpose is contiguous.
        """
        dense = self.dense()
        self._joined, self._kept = None, dense.T.contiguous().T if is_transposed else dense
        return self._kept


def _version(rows: torch.Tensor) -> int | None:
    """Return a number that grows with each write; inference tensors have none."""
    return None if rows.is_inference() else rows._version
