"""The number of rows that must go together, so that none of them depends on how many others there are."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

_MULTIPLES = (1, 2, 4, 8, 16, 32)
_FEW = tuple(range(1, 13))  # rows: where libraries choose among their ways
_MORE = (14, 15, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 160, 256)
_LEAST = (16, 32, 64, 160)  # always tried: most trees
_MOST_SLICES = 4  # the sums of a single row agree by chance in one case of seven
_NUM_CORRECTED = 3
_NUM_INPUTS = 32  # of which those that count most are corrected
_SEED = 2402
_SCALE = 64.0  # so that what is left of a cancelled sum isn't below float16's smallest number


NUM_TRIED = len(_FEW) + len(_MORE)  # of numbers of rows, where it is quick


def most_rows(is_quick: bool) -> int:
    """Return the largest number of rows that is tried."""
    return (_MORE if is_quick else _LEAST)[-1]


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of rows to try, such as a product.

    Attributes:
        run: maps rows, ``(count, width)``.
        width, dtype, device: of the rows.
        weight, bias: of a product, ``(columns, width)`` and ``(columns,)``.
        is_opaque: it is a product by a matrix that can't be read, or by another than ``weight``. Rows have a large
            number each then, since such layers were seen to treat the column of one apart, in all rows.
    """

    run: Callable[[torch.Tensor], torch.Tensor]
    width: int
    dtype: torch.dtype
    device: torch.device
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_opaque: bool = False

    def multiple(self, is_quick: bool = True, least: int = 1) -> int | None:
        """Return the least multiple that makes rows independent, from ``least`` on; None where there is none.

        Few rows are tried in several places, then multiples of what fits those, up to ``most_rows(is_quick)``.
        """
        many = _MORE if is_quick else _LEAST
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
        """Return rows, (count, width), each of which has one column whose sum cancels to the error of its summation.

        Rounding to half precision hides the order of a sum in all but one of some ten thousand numbers. It can't hide
        that order where nothing but the error of the sum is left.
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
        for place in places.T:  # each leaves what its number's rounding does, a small part of the one before
            missing = target - (rows.double() * factors).sum(-1)
            at = torch.arange(len(rows), device=rows.device), place
            rows[at] = (missing / factors[at]).nan_to_num(0.0, 0.0, 0.0).to(rows.dtype)
        return rows

    def _cancelling_opaquely(self, rows: torch.Tensor) -> torch.Tensor:
        """Do the same by what the product itself says of some of its inputs, and of the rows so far."""
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
        """Yield the numbers of rows that give some row other bits than ``whole``, the largest number, does."""
        for count in counts:
            for index in range(max(1, _MOST_SLICES // count)):
                start = (count + index) * 7 % (len(rows) - count)  # a row's place must not matter either
                if not torch.equal(self.run(rows[start : start + count]), whole[start : start + count]):
                    yield count
                    break
