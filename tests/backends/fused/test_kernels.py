"""The kernels of fused layers, under Triton's interpreter and compiled ahead of time."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch

from specdec.backends.fused.layer import LayerKernels
from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Norm, Slots
from tests.support import fused_kernels
from tests.support.triton_interpreter import needs_triton, run_interpreted

INPUTS = 48
Call = Callable[[LayerKernels, torch.Tensor], torch.Tensor]


def whole_numbers(*shape: int, draw: torch.Generator, most: int = 4) -> torch.Tensor:
    """Numbers whose products add up exactly, in any order."""
    return torch.randint(-most, most + 1, shape, generator=draw).float()


def normed(norm: Norm, is_added: bool) -> Call:
    def call(kernels: LayerKernels, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernels.norm(x, norm, out, x.flip(1).contiguous() if is_added else None)
        return out

    return call


def multiplied(matrices: Sequence[LinearWeights]) -> Call:
    def call(kernels: LayerKernels, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), sum(each.num_outputs for each in matrices))
        kernels.products(x, matrices, out)
        return out

    return call


def added(by: LinearWeights, factor: float) -> Call:
    def call(kernels: LayerKernels, x: torch.Tensor) -> torch.Tensor:
        out = x.flip(1).contiguous()
        kernels.add_product(x, by, out, out, factor)
        return out

    return call


def gated(gate: LinearWeights, up: LinearWeights, activation: Activation) -> Call:
    def call(kernels: LayerKernels, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), gate.num_outputs)
        kernels.gated_product(x, gate, up, activation, out)
        return out

    return call


def calls(numbers: Callable[..., torch.Tensor], dtype: torch.dtype) -> dict[str, Call]:
    """Every kernel with every option, as a function of rows, (rows, 48), of any number."""
    draw = torch.Generator().manual_seed(0)

    def matrix(outputs: int, has_bias: bool) -> LinearWeights:
        weight, bias = (numbers(*shape, draw=draw).to(dtype) for shape in ((outputs, INPUTS), (outputs,)))
        return LinearWeights(weight, bias if has_bias else None)

    found: dict[str, Call] = {}
    for offset, is_late, is_added in product((0.0, 1.0), (False, True), (False, True)):
        norm = Norm(numbers(INPUTS, draw=draw).to(dtype), 1e-6, offset, is_late)
        found[f"norm, offset {offset}, late {is_late}, added {is_added}"] = normed(norm, is_added)
    for has_bias in (False, True):
        found[f"products, bias {has_bias}"] = multiplied([matrix(outputs, has_bias) for outputs in (40, 16, 24)])
        found[f"added, bias {has_bias}"] = added(matrix(INPUTS, has_bias), 0.5 if has_bias else 1.0)
    for activation in Activation:
        has_bias = activation is Activation.SILU
        found[f"gated by {activation.name}"] = gated(matrix(80, has_bias), matrix(80, has_bias), activation)
    return found


def placed(
    kernels: LayerKernels, heads: Heads, rotated: int, dtype: torch.dtype, wide_angles: bool
) -> list[torch.Tensor]:
    """Queries, keys and values of two rows of three nodes, in slots that are in no order."""
    draw = torch.Generator().manual_seed(1)
    qkv = torch.randn(6, (heads.num_heads + 2 * heads.num_groups) * heads.size, generator=draw).to(dtype)
    angles = [torch.randn(6, rotated, generator=draw) for _ in range(2)]
    cos, sin = (each if wide_angles else each.to(dtype) for each in angles)
    keys, values = (torch.zeros(5, heads.num_groups, 12, heads.size, dtype=dtype) for _ in range(2))
    to = Slots(torch.tensor([[1], [3]]), torch.tensor([[4, 5, 6], [7, 9, 8]]), keys, values)
    query = torch.empty(6, heads.num_heads * heads.size, dtype=dtype)
    kernels.place(qkv, heads, (cos, sin) if rotated else None, to, query)
    return [query, keys, values]


def of_kernel(name: str, x: torch.Tensor) -> torch.Tensor:
    """The rows to test a kernel with: few of a norm, which has a program for each."""
    return x[:6] if name.startswith("norm") else x


def check_numbers() -> None:
    """Compare Triton's kernels with torch's, to a unit in the last place."""
    from specdec.backends.fused import kernels

    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]  # a process of its own, without a GPU
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-3)):
        x = torch.randn(37, INPUTS, generator=torch.Generator().manual_seed(2)).to(dtype)
        for name, call in calls(lambda *shape, draw: torch.randn(shape, generator=draw) / 4, dtype).items():
            rows = of_kernel(name, x)
            found, expected = call(kernels, rows), call(fused_kernels, rows)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance, msg=f"{name} {dtype}")
        norms = [Norm(torch.randn(12).to(dtype), 1e-6, offset) for offset in (0.0, 1.0)]
        angles = [(0, False), (8, False), (12, False), *([(8, True), (12, True)] if dtype != torch.float32 else [])]
        for normed, (rotated, wide) in product((None, *norms), angles):
            heads = Heads(4, 2, 12, normed, normed)
            for found, expected in zip(
                placed(kernels, heads, rotated, dtype, wide), placed(fused_kernels, heads, rotated, dtype, wide),
                strict=True,
            ):  # fmt: skip
                torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance, msg=f"{rotated} {dtype}")


def check_rows() -> None:
    """A row has the same bits alone, among others, and at any place.

    The interpreter's products are numpy's, whose bits depend on a row's place; sums of whole numbers don't, and show
    whether a tile reads and writes its own rows. Tensor cores are tested on a GPU, at load.
    """
    from specdec.backends.fused import kernels

    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]  # as above
    draw = torch.Generator().manual_seed(3)
    for dtype in (torch.float32, torch.float16):
        x = whole_numbers(80, INPUTS, draw=draw, most=2).to(dtype)
        for name, call in calls(lambda *shape, draw: whole_numbers(*shape, draw=draw, most=1), dtype).items():
            rows = of_kernel(name, x)
            whole = call(kernels, rows)
            for first, count in ((5, 1), (1, 4), (11, 17), (7, 40)):
                if first + count > len(rows):
                    continue
                part = call(kernels, rows[first : first + count].contiguous())
                assert torch.equal(part, whole[first : first + count]), f"{name} {dtype}: rows {first}, {count}"


@needs_triton
def test_the_kernels_under_tritons_interpreter() -> None:
    names = "check_numbers, check_rows"
    run_interpreted(f"from tests.backends.fused.test_kernels import {names}\nfor check in {names}: check()")


PRODUCT: dict[str, Any] = dict.fromkeys(("x", "w0", "w1", "w2", "b0", "b1", "b2", "residual", "out"), "*bf16")
PRODUCT |= dict.fromkeys(("num_rows", "n0", "n1", "n2", "x_row", "w_row", "out_row"), "i32") | {"factor": "fp32"}


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("is_gated", "rows", "columns"), [(False, 16, 16), (False, 64, 64), (True, 16, 32), (True, 64, 32)]
)
def test_products_are_compiled_without_spills(capability: int, is_gated: bool, rows: int, columns: int) -> None:
    from specdec.models.independent_rows_kernels import _product
    from tests.support.triton_ahead import compiled

    constants = {
        "SIZE": 4096, "ROWS": rows, "COLUMNS": columns, "INPUTS": 128, "HAS_BIAS": False, "IS_ADDED": not is_gated,
        "HAS_FACTOR": False, "ACTIVATION": 0 if is_gated else -1,
    }  # fmt: skip
    wide = ("n0", "n1", "n2", "x_row", "w_row", "out_row")
    made = compiled(_product, PRODUCT, constants, capability, wide, num_warps=4, num_stages=4)
    assert made.stack == 0
    assert made.shared <= (100 if capability == 80 else 227) * 1024  # consumers' GPUs of the same kind have 100
    expected = {80: "mma.sync", 90: "wgmma" if rows == 64 else "mma.sync", 100: "mma.sync"}
    if (capability, rows) != (100, 64):  # which is not used there
        assert made.instruction == expected[capability]
