"""Finds the multiple to which rows must be padded so that no row depends on the number of rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, PositiveInt

from specdec.machine.cache_files import Remembered, read, update
from specdec.machine.cache_folder import cache_folder
from specdec.machine.facts import key_of
from specdec.models.weights.base import Kernel

PRODUCT = "a product with a"  # how linear layers are named in reasons against exact numerics

_MULTIPLES = (1, 2, 4, 8, 16, 32)
_FEW = tuple(range(1, 13))  # rows: where libraries switch between kernels
_MORE = (14, 15, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 160, 256)
_LEAST = (16, 32, 64, 160)  # always tested: the sizes of most trees
_ON_GPUS = (384, 512, 1024, 2048)  # tested there too: kernels change with larger sizes, and more requests share a pass
_MOST_SLICES = 4  # the sums of a single row are equal by chance in one case of seven
_NUM_CORRECTED = 3
_NUM_INPUTS = 32  # of which those that count most are corrected
_SEED = 2402
_SCALE = 64.0  # so that the remainder of a cancelled sum isn't below float16's smallest number
_FILE = "row_multiples.json"

NUM_TRIED = len(_FEW) + len(_MORE)  # of numbers of rows, where it is quick


def _tested(is_quick: bool, device: torch.device) -> tuple[int, ...]:
    """Return the numbers of rows to test besides the smallest."""
    return (_MORE if is_quick else _LEAST) + (_ON_GPUS if device.type == "cuda" else ())


def most_rows(is_quick: bool, device: torch.device) -> int:
    """Return the largest number of rows to test."""
    return _tested(is_quick, device)[-1]


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of rows to test, such as a product.

    Attributes:
        run: the function of rows, ``(count, width)``.
        width, dtype, device: of the rows.
        weight, bias: of a product, ``(columns, width)`` and ``(columns,)``.
        is_opaque: True for a product by a matrix that can't be read or isn't ``weight``. Each row then has one large
            number, because such layers were seen to treat a column with a large number differently in all rows.
    """

    run: Callable[[torch.Tensor], torch.Tensor]
    width: int
    dtype: torch.dtype
    device: torch.device
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_opaque: bool = False

    def multiple(self, is_quick: bool = True, least: int = 1) -> int | None:
        """Return the smallest multiple, at least ``least``, that makes rows independent; None if there is none.

        Small numbers of rows are tested in several places, then multiples, up to ``most_rows``.
        """
        many = _tested(is_quick, self.device)
        rows = self.rows(many[-1])
        whole = self.run(rows)
        multiple = least
        for counts in (_FEW, many[:-1]):
            deviating = set(self._deviating([count for count in counts if count % multiple == 0], rows, whole))
            fitting = [m for m in _MULTIPLES if m >= multiple and not any(count % m == 0 for count in deviating)]
            if not fitting:
                return None
            multiple = fitting[0]
        return multiple

    def rows(self, count: int) -> torch.Tensor:
        """Return rows, ``(count, width)``, each with one output column whose sum cancels to its rounding error.

        Rounding to half precision hides the order of summation in all but about one of ten thousand numbers. It can't
        hide the order if only the error of the sum remains.
        """
        generator = torch.Generator().manual_seed(_SEED)
        rows = torch.randn(count, self.width, generator=generator)
        if self.is_opaque:
            numbers = torch.arange(count)
            rows[numbers, numbers % self.width] = _SCALE
            return self._cancelling_opaquely(rows.to(self.device, self.dtype))
        if self.weight is None:
            return rows.to(self.device, self.dtype)
        return self._cancelling(self.weight, rows.mul_(_SCALE).to(self.device, self.dtype))

    def _cancelling(self, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        stride = max(7, len(weight) // len(rows))  # over all columns, not neighbouring columns for neighbouring rows
        columns = torch.arange(len(rows), device=rows.device) * stride % len(weight)
        factors = weight[columns].double()
        target = 0.0 if self.bias is None else -self.bias[columns].double()
        places = factors.abs().topk(min(_NUM_CORRECTED, self.width)).indices
        rows.scatter_(1, places, 0.0)
        for place in places.T:  # each leaves the rounding error of its number, a small part of the previous one
            missing = target - (rows.double() * factors).sum(-1)
            at = torch.arange(len(rows), device=rows.device), place
            rows[at] = (missing / factors[at]).nan_to_num(0.0, 0.0, 0.0).to(rows.dtype)
        return rows

    def _cancelling_opaquely(self, rows: torch.Tensor) -> torch.Tensor:
        """Do the same without reading the weight, by products with unit inputs and with the rows so far."""
        tried = torch.linspace(0, self.width - 1, min(_NUM_INPUTS, self.width), device=self.device).long()
        units = torch.zeros(len(tried) + 1, self.width, dtype=self.dtype, device=self.device)
        units[torch.arange(len(tried), device=self.device), tried] = 1.0
        of_units = self.run(units).double()
        factors = of_units[:-1] - of_units[-1]  # the last is the bias
        at = torch.arange(len(rows), device=rows.device)
        columns = at * max(7, factors.shape[1] // len(rows)) % factors.shape[1]
        chosen = factors[:, columns].T.abs().topk(min(_NUM_CORRECTED, len(tried))).indices
        rows.scatter_(1, tried[chosen], 0.0)
        for index in chosen.T:
            missing = -self.run(rows)[at, columns].double()
            rows[at, tried[index]] = (missing / factors[index, columns]).nan_to_num(0.0, 0.0, 0.0).to(rows.dtype)
        return rows

    def _deviating(self, counts: Sequence[int], rows: torch.Tensor, whole: torch.Tensor) -> Iterator[int]:
        """Yield the numbers of rows for which some row has other bits than in ``whole``, the largest number of rows."""
        for count in counts:
            for index in range(max(1, _MOST_SLICES // count)):
                start = (count + index) * 7 % (len(rows) - count)  # a row's place must not matter either
                if not torch.equal(self.run(rows[start : start + count]), whole[start : start + count]):
                    yield count
                    break


class _Cached(Remembered):
    """The contents of the file."""

    multiples: dict[str, PositiveInt] = Field(default_factory=dict)


class RowMultiples:
    """The multiples to which a kernel's rows are padded, by dtype and shape of the matrix.

    Finding one takes about 20 products, so they are cached in a file. If it can't be written, the next process finds
    them again.

    Args:
        folder: of the file (default: the user's cache folder).
    """

    def __init__(self, kernel: Kernel, folder: Path | None = None) -> None:
        self._kernel, self._path = kernel, (folder or cache_folder()) / _FILE
        self._key = key_of(type(kernel).__module__, type(kernel).__qualname__)
        self._known = dict((read(self._path, _Cached) or _Cached()).multiples)

    def of(self, packed: Any, matrix: torch.Tensor) -> int:
        """Return the multiple for a packed matrix, given the dense one too."""
        key = f"{self._key} {matrix.dtype} {tuple(matrix.shape)}"
        if key not in self._known:
            self._known[key] = self._found(packed, matrix)
            found = {key: self._known[key]}
            update(self._path, _Cached, lambda old: _Cached(multiples={**(old or _Cached()).multiples, **found}))
        return self._known[key]

    def _found(self, packed: Any, matrix: torch.Tensor) -> int:
        run = partial(self._kernel.multiply, packed=packed, bias=None)
        is_other = bool(self._kernel.lossy)  # than the given matrix
        rows = RowFunction(run, matrix.shape[1], matrix.dtype, matrix.device, matrix, is_opaque=is_other)
        return rows.multiple(is_quick=False) or 1  # the probe of products tests more numbers of rows anyway
