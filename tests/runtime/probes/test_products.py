"""Rows that cancel show what rounding hides: the order in which a product sums."""

from collections.abc import Callable

import pytest
import torch

from specdec.models.weights.row_independence import RowFunction
from specdec.runtime.probes import products
from specdec.runtime.probes.products import probe_products
from tests.support import families

WIDTH, COLUMNS = 256, 96
Forward = Callable[[torch.nn.Linear, torch.Tensor], torch.Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Bare(torch.nn.Module):
    """A model of one product, computed as it is told."""

    def __init__(self, forward: Forward, dtype: torch.dtype, has_bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.product = torch.nn.Linear(WIDTH, COLUMNS, bias=has_bias, dtype=dtype)
        self.product.forward = lambda rows: forward(self.product, rows[0])[None]  # type: ignore[method-assign]
        self.device, self.dtype = torch.device("cpu"), dtype


def one_by_one(layer: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """Each row by itself, so that none can depend on others."""
    return torch.cat([summed(layer, row[None], [WIDTH]) for row in rows])


def by_halves(layer: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """A single row is summed in two halves, and several in one go."""
    if len(rows) > 1:
        return one_by_one(layer, rows)
    return summed(layer, rows, [WIDTH // 2, WIDTH // 2])


def summed(layer: torch.nn.Linear, rows: torch.Tensor, parts: list[int]) -> torch.Tensor:
    """Sums of parts in float32, rounded at last."""
    x, w = rows.float().split(parts, 1), layer.weight.float().split(parts, 1)
    total = sum(part @ columns.T for part, columns in zip(x, w, strict=True))
    return (total if layer.bias is None else total + layer.bias.float()).to(rows.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_are_equal_in_any_company_need_no_padding(dtype: torch.dtype) -> None:
    assert probe_products(Bare(one_by_one, dtype), 60.0).row_multiple == 1


@pytest.mark.parametrize("seconds", [60.0, 0.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_a_sum_whose_order_depends_on_the_number_of_rows_is_found_though_rounding_hides_it(
    dtype: torch.dtype, seconds: float
) -> None:
    model = Bare(by_halves, dtype)
    found = probe_products(model, seconds)
    assert (found.row_multiple, found.inexact) == (2, "")
    if dtype == torch.bfloat16:
        rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)
        whole = model.product(rows[None])
        assert all(torch.equal(model.product(row[None, None]), whole[:, [index]]) for index, row in enumerate(rows))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_the_order_of_a_sum_is_found_where_the_matrix_cannot_be_read(dtype: torch.dtype, has_bias: bool) -> None:
    def multiple(forward: Forward) -> int | None:
        layer = Bare(forward, dtype, has_bias).product
        run = RowFunction(lambda rows: forward(layer, rows), WIDTH, dtype, torch.device("cpu"), is_opaque=True)
        return run.multiple()

    assert multiple(one_by_one) == 1
    assert multiple(by_halves) == 2


def test_rows_that_no_multiple_makes_equal_are_named() -> None:
    def by_number(layer: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        return summed(layer, rows, [len(rows) % WIDTH, WIDTH - len(rows) % WIDTH])

    expected = f"a row of a product with a {COLUMNS} by {WIDTH} matrix depends on the number of rows"
    assert probe_products(Bare(by_number, torch.float32), 60.0).inexact == expected


def test_few_rows_are_tried_in_several_places_on_slow_machines_too() -> None:
    model = Bare(one_by_one, torch.bfloat16)
    ((_, layer),) = products._distinct(model)
    first_tried = layer.rows(160)[7]

    def by_place(layer: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        return one_by_one(layer, rows) if torch.equal(rows[0], first_tried) else by_halves(layer, rows)

    assert probe_products(Bare(by_place, torch.bfloat16), 0.0).row_multiple == 2


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-14), (torch.bfloat16, 1e-6), (torch.float16, 1e-7)])
@torch.inference_mode()
def test_the_sum_of_a_row_cancels_in_one_column(dtype: torch.dtype, most: float, has_bias: bool) -> None:
    model = Bare(one_by_one, dtype, has_bias)
    ((_, layer),) = products._distinct(model)
    rows = layer.rows(160).double()
    weight = model.product.weight.double()
    bias = model.product.bias.double() if has_bias else torch.zeros(COLUMNS)
    sums, sizes = rows @ weight.T + bias, rows.abs() @ weight.abs().T + bias.abs()
    columns = torch.arange(160) * 7 % COLUMNS
    cancelled = (sums.abs() / sizes)[torch.arange(160), columns]
    assert float(cancelled.max()) < most
    assert float((sums.abs() / sizes).median()) > 1e-3


def test_layers_of_one_shape_are_tried_once_and_routers_by_their_product() -> None:
    class Router(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            return super().forward(rows), None

    model = Bare(one_by_one, torch.float32)
    model.same, model.router = torch.nn.Linear(WIDTH, COLUMNS), Router(WIDTH, 4)
    model.activation = torch.nn.SiLU()
    names = [name for name, _ in products._distinct(model)]
    assert names == [f"a product with a {size} by {WIDTH} matrix" for size in (COLUMNS, 4)] + ["the activation SiLU"]
    assert probe_products(model, 60.0).inexact == ""


def test_layers_that_are_not_tested_make_a_model_on_a_gpu_inexact() -> None:
    assert not products._untested(families.make(*families.TREES["llama"]))
    assert products._untested(families.make(*families.TREES["mixtral"])) == "model.layers.0.mlp.gate"
    assert products._untested(families.make(*families.TREES["deepseek_v3"])) == "model.layers.0.self_attn.kv_b_proj"


def test_a_norm_whose_rows_depend_on_their_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.make(*families.TREES["llama"])
    norm = type(model.model.norm)
    forward = norm.forward

    def by_number(self: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return forward(self, rows) * (1 + 2**-20 * (rows.numel() // rows.shape[-1] % 3))

    monkeypatch.setattr(norm, "forward", by_number)
    assert "LlamaRMSNorm of" in products.probe_products(model, 5.0).inexact
