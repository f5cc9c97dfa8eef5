"""Operations with independent rows: which are replaced, and what the kernels compute."""

import pytest
import torch
from torch.nn.functional import linear
from torch.overrides import _get_current_function_mode

from specdec.models import independent_rows as module
from specdec.models.independent_rows import IndependentRows, Kernels, independent_rows
from tests.support.triton_interpreter import needs_triton, run_interpreted


class Noted:
    """Kernels that note their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def sums(self, rows: torch.Tensor, is_mean: bool) -> torch.Tensor:
        self.calls.append(("mean" if is_mean else "sum", tuple(rows.shape)))
        return rows.float().mean(-1) if is_mean else rows.float().sum(-1)

    def products(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        self.calls.append(("product", tuple(rows.shape)))
        return rows @ weight.T if bias is None else rows @ weight.T + bias


def check(kernels: Kernels) -> None:
    """Compare kernels with sums and products in float64."""
    draw = torch.Generator().manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2)):
        x = torch.randn(2, 5, 300, generator=draw).to(dtype)
        weight, bias = (torch.randn(*shape, generator=draw).to(dtype) for shape in ((70, 300), (70,)))
        with IndependentRows(kernels, "cpu", products=True):
            found = x.square().mean(-1, keepdim=True), x.sum(dim=2), torch.sum(x, (-1,)), linear(x / 17, weight, bias)
        exact = x.double()
        sums = exact.sum(-1)
        expected = (
            x.square().double().mean(-1, keepdim=True),
            sums,
            sums,
            linear((x / 17).double(), weight.double(), bias.double()),
        )
        for one, other in zip(found, expected, strict=True):
            assert (one.shape, one.dtype) == (other.shape, dtype)
            torch.testing.assert_close(one.double(), other, atol=20 * tolerance, rtol=tolerance)


def test_sums_over_the_last_dimension_and_linear_layers_are_replaced() -> None:
    noted, x, weight = Noted(), torch.randn(2, 5, 8), torch.randn(3, 8)
    with IndependentRows(noted, "cpu", products=True):
        x.mean(-1), x.sum(2), torch.mean(x, dim=-1, keepdim=True), torch.mean(input=x, axis=-1)
        linear(x, weight), torch.nn.Linear(8, 4)(x)
    rows = (10, 8)
    assert noted.calls == [*[(name, rows) for name in ("mean", "sum", "mean", "mean")], *[("product", rows)] * 2]


def test_all_else_is_torchs_own() -> None:
    noted, x = Noted(), torch.randn(2, 5, 8)
    with IndependentRows(noted, "cpu", products=False):
        (
            x.mean(),
            x.sum(1),
            x.sum((0, 2)),
            x.long().sum(-1),
            x.mean(-1, dtype=torch.float64),
            linear(x, torch.ones(3, 8)),
        )
        x.double().mean(-1), x[0, 0, 0].sum(-1), x[:, :, :0].sum(-1)
    with IndependentRows(noted, "cuda", products=True):  # a layer that is offloaded
        x.mean(-1), linear(x, torch.ones(3, 8))
    assert not noted.calls
    with independent_rows(torch.device("cpu")):  # whose own sums are independent
        assert _get_current_function_mode() is None


def test_numbers_are_those_of_float64() -> None:
    check(Noted())


@needs_triton
def test_the_gpu_kernels_compute_the_same_under_tritons_interpreter() -> None:
    run_interpreted(
        "from specdec.models import independent_rows_kernels\n"
        "from tests.models.test_independent_rows import check\ncheck(independent_rows_kernels)"
    )


def test_only_gpus_with_triton_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert not module.has_kernels(gpu)
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    assert module.has_kernels(gpu)
    assert not module.has_kernels(torch.device("cpu"))
    assert not module.has_kernels("a model that isn't torch's")
