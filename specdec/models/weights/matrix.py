"""A weight matrix in memory: packed by a kernel, dense, or both if other code reads its rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from specdec.models.weights.base import Kernel


class Matrix(ABC):
    """The numbers of a ``PackedWeight``. Shapes are ``(outputs, inputs)``.

    Attributes:
        checksum: of the packed weight in its layer's shape, if known.
    """

    checksum: str | None = None

    @property
    @abstractmethod
    def kernel(self) -> Kernel | None:
        """The kernel that multiplies by the matrix; None while it is dense."""

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """A key that is equal for matrices whose products are computed in the same way."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product, ``(..., outputs)``, of rows, ``(..., inputs)``."""

    @abstractmethod
    def dense(self) -> torch.Tensor:
        """Return the dense matrix, read-only: a copy if it is packed, else the stored one."""

    @abstractmethod
    def make_dense(self, is_transposed: bool) -> torch.Tensor:
        """Drop the packed form and return the dense matrix, which products read from now on; callers may write to it.

        Args:
            is_transposed: make the matrix such that its transpose is contiguous.
        """


class WholeMatrix(Matrix):
    """A matrix with a product of its own, not joined with others.

    Args:
        kernel, packed: the kernel and the matrix in its layout; None if the matrix is dense.
        kept: the dense matrix, if it is stored: for embeddings, whose rows are looked up, and for unpacked matrices.
        row_multiple: rows are padded to a multiple of this number.
    """

    def __init__(
        self, kernel: Kernel | None, packed: Any | None, kept: torch.Tensor | None = None, row_multiple: int = 1
    ) -> None:
        self._kernel, self._packed, self._kept, self._row_multiple = kernel, packed, kept, row_multiple

    @property
    def kernel(self) -> Kernel | None:
        return None if self._packed is None else self._kernel

    @property
    def kind(self) -> Hashable:
        return type(self.kernel), self._row_multiple

    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._kernel is None or self._packed is None:
            return linear(rows, self.dense(), bias)
        return _multiply(self._kernel, rows, self._packed, bias, self._row_multiple)

    def dense(self) -> torch.Tensor:
        if self._kept is not None:
            return self._kept
        assert self._kernel is not None
        return self._kernel.unpack(self._packed)

    def make_dense(self, is_transposed: bool) -> torch.Tensor:
        self._kept = _contiguous(self.dense(), is_transposed)
        self._packed = None
        return self._kept


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
    """Several matrices that receive the same rows, stacked to one: a single product replaces several.

    The first request computes the products of all. The others' are cached, and returned for the same tensor of rows.
    Any other tensor is multiplied again, so nothing depends on the order of calls.
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
        self._packed, self._biases = packed, list(biases)
        self._ready: _Ready | None = None

    def multiply(self, rows: torch.Tensor, index: int, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product of one of the matrices."""
        if bias is not self._biases[index]:
            return linear(rows, self.dense(index), bias)
        ready = self._ready  # other threads may replace it meanwhile
        part = None if ready is None else ready.part_for(rows, index)
        if ready is None or part is None:
            joined = torch.cat([each for each in self._biases if each is not None]) if bias is not None else None
            product = _multiply(self.kernel, rows, self._packed, joined, self.row_multiple)
            parts = product.split_with_sizes(self.heights, -1)
            self._ready = ready = _Ready(rows, _version(rows), [*parts])
            part = parts[index]
        ready.parts[index] = None
        if all(each is None for each in ready.parts):
            self._ready = None
        return part

    def dense(self, index: int) -> torch.Tensor:
        """Return a copy of one of the matrices."""
        return torch.split(self.kernel.unpack(self._packed), list(self.heights))[index].clone()


class PartMatrix(Matrix):
    """One of the matrices of a joined matrix, for layers that receive the same rows."""

    def __init__(self, joined: JoinedMatrix, index: int) -> None:
        self._joined, self._index = joined, index
        self._kept: torch.Tensor | None = None

    @property
    def kernel(self) -> Kernel | None:
        return self._joined.kernel if self._kept is None else None

    @property
    def kind(self) -> Hashable:
        return type(self.kernel), self._joined.row_multiple, self._joined.heights, self._index

    def multiply(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._kept is not None:
            return linear(rows, self._kept, bias)
        return self._joined.multiply(rows, self._index, bias)

    def dense(self) -> torch.Tensor:
        return self._joined.dense(self._index) if self._kept is None else self._kept

    def make_dense(self, is_transposed: bool) -> torch.Tensor:
        self._kept = _contiguous(self.dense(), is_transposed)
        return self._kept


def _multiply(
    kernel: Kernel, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None, row_multiple: int
) -> torch.Tensor:
    """Return the kernel's product, with rows padded so that each is independent of the others."""
    if row_multiple == 1:
        return kernel.multiply(rows, packed, bias)
    *shape, width = rows.shape
    count = math.prod(shape)
    if not count % row_multiple:
        return kernel.multiply(rows, packed, bias)
    padded = torch.nn.functional.pad(rows.reshape(count, width), (0, 0, 0, -count % row_multiple))
    return kernel.multiply(padded, packed, bias)[:count].view(*shape, -1)


def _version(rows: torch.Tensor) -> int | None:
    """Return a number that grows with each write; inference tensors have none."""
    return None if rows.is_inference() else rows._version


def _contiguous(dense: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    return dense.T.contiguous().T if is_transposed else dense
