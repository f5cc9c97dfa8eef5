"""The multiples to which a kernel's rows are padded: found, cached, and found again where the file is of no use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec.models.weights.base import Kernel
from specdec.models.weights.row_independence import RowMultiples


class InPairs(Kernel):
    """Products with other last bits for odd numbers of rows if the matrix is wide; it counts them."""

    count = 0

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        return ""

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.double()

    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        InPairs.count += 1
        terms = (rows[:, place, None].double() * packed[:, place] for place in range(packed.shape[1]))
        product = sum(terms, torch.zeros(1, dtype=torch.float64))  # in one order, with any number of rows
        return (product + 2.0**-10 * (len(rows) % 2) * (packed.shape[1] > 8)).to(rows.dtype)

    def unpack(self, packed: Any) -> torch.Tensor:
        return packed.float()


class Others(InPairs):
    """Another kernel."""


PAIRS = InPairs()


def found(folder: Path, width: int = 16, dtype: torch.dtype = torch.float32, kernel: Kernel = PAIRS) -> int:
    matrix = torch.randn(12, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    return RowMultiples(kernel, folder).of(kernel.pack(matrix), matrix)


def num_products(run: Callable[[], object]) -> int:
    before = InPairs.count
    run()
    return InPairs.count - before


def test_a_multiple_is_found_and_cached_for_kernel_dtype_and_shape(tmp_path: Path) -> None:
    assert num_products(lambda: found(tmp_path)) > 10
    assert (found(tmp_path, 16), found(tmp_path, 8)) == (2, 1)
    for _ in range(2):
        assert num_products(lambda: (found(tmp_path, 16), found(tmp_path, 8))) == 0
    others: list[dict[str, Any]] = [{"width": 24}, {"dtype": torch.bfloat16}, {"kernel": Others()}]
    for other in others:
        assert num_products(lambda other=other: found(tmp_path, **other)) > 0
    assert num_products(lambda: found(tmp_path)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["row_multiples.json"]


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"multiples": {}}'])
def test_a_damaged_file_is_made_anew(tmp_path: Path, text: str) -> None:
    found(tmp_path)
    (tmp_path / "row_multiples.json").write_text(text)
    assert num_products(lambda: found(tmp_path)) > 0
    assert num_products(lambda: found(tmp_path)) == 0


def test_where_nothing_can_be_written_multiples_are_found_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert num_products(lambda: found(tmp_path / "file" / "below")) > 0
