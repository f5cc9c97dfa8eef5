"""The choice of a kernel: remembered, and measured again where what is remembered doesn't serve."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from specdec.weights.base import Kernel
from specdec.weights.choice import choose, num_shapes
from specdec.weights.layers import ProductLayer, product_layers


class Counting(Kernel):
    """Stock products, counted."""

    def __init__(self, holds: bool = True) -> None:
        self.holds, self.count = holds, 0

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        return ""

    def pack(self, weight: torch.Tensor) -> Any | None:
        return weight.clone() if self.holds else None

    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        self.count += 1
        return linear(rows, packed, bias)

    def unpack(self, packed: Any) -> torch.Tensor:
        return packed.clone()


def layers_of(width: int = 8) -> list[ProductLayer]:
    return list(product_layers(torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.Linear(4, width))))


def test_a_choice_is_remembered_for_a_models_shapes(tmp_path: Path) -> None:
    kernel, layers = Counting(), layers_of()
    chosen = choose(layers, [layers[:1]], {"counting": kernel}, needs_gain=False, folder=tmp_path)
    assert chosen.name == "counting"
    measured = kernel.count
    assert measured
    assert choose(layers_of(), [layers[:1]], {"counting": kernel}, needs_gain=False, folder=tmp_path) == chosen
    assert kernel.count == measured
    choose(layers_of(16), [], {"counting": kernel}, needs_gain=False, folder=tmp_path)
    assert kernel.count > measured


def test_each_shape_that_is_measured_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    layers = [*layers_of(), *layers_of()]
    for _ in range(2):
        choose(layers, [], {"counting": Counting()}, False, tmp_path, on_shape=lambda: told.append("shape"))
        assert len(told) == num_shapes(layers) == 2


@pytest.mark.parametrize("written", ["", "[]", "{", '{"a": 1}', "\x00"])
def test_a_damaged_file_is_written_again(tmp_path: Path, written: str) -> None:
    (tmp_path / "kernels.json").write_text(written)
    kernel, layers = Counting(), layers_of()
    assert choose(layers, [], {"counting": kernel}, needs_gain=False, folder=tmp_path).name == "counting"
    measured = kernel.count
    choose(layers, [], {"counting": kernel}, needs_gain=False, folder=tmp_path)
    assert kernel.count == measured


def test_a_remembered_choice_that_is_none_is_measured_again(tmp_path: Path) -> None:
    kernel, layers = Counting(), layers_of()
    choose(layers, [], {"counting": kernel}, needs_gain=False, folder=tmp_path)
    path = tmp_path / "kernels.json"
    path.write_text(path.read_text().replace('"joins"', '"joined"'))
    assert choose(layers, [], {"counting": kernel}, needs_gain=False, folder=tmp_path).name == "counting"


def test_where_nothing_can_be_written_it_is_measured_each_time(tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.write_text("")
    kernel = Counting()
    assert choose(layers_of(), [], {"counting": kernel}, needs_gain=False, folder=taken / "below").name == "counting"
    assert [each.name for each in tmp_path.iterdir()] == ["a file"]


def test_a_kernel_that_cannot_hold_the_matrices_is_not_chosen(tmp_path: Path) -> None:
    kernels = {"cannot": Counting(holds=False), "can": Counting()}
    assert choose(layers_of(), [], kernels, needs_gain=False, folder=tmp_path).name == "can"
    assert choose(layers_of(), [], {"cannot": kernels["cannot"]}, needs_gain=True, folder=tmp_path).name == ""
