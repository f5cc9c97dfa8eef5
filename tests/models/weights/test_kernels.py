"""The laws of kernels, for each that is installed, against products in float64."""

import pytest
import torch

from specdec.models.weights.base import Kernel
from specdec.models.weights.fbgemm import FBGEMMKernel
from specdec.plugins.registry import load_plugins

CPU = torch.device("cpu")
KERNELS = {plugin.name: plugin.cls() for plugin in load_plugins().of_kind("kernels")}
SERVED = [
    (name, dtype)
    for name, kernel in KERNELS.items()
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    if not kernel.why_not(dtype, CPU)
]
LOSSLESS = [(name, dtype) for name, dtype in SERVED if not KERNELS[name].lossy]


def matrix(dtype: torch.dtype, outputs: int = 72, inputs: int = 40) -> torch.Tensor:
    """Numbers that every kernel can hold: multiples of 2^-10 below 1/8."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-128, 129, (outputs, inputs), generator=generator).mul(2.0**-10).to(dtype)


@pytest.mark.parametrize(("name", "dtype"), LOSSLESS)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_the_matrix(name: str, dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    kernel, weight = KERNELS[name], matrix(dtype)
    rows, bias = torch.randn(2, num_rows, 40).to(dtype), torch.randn(72).to(dtype) if has_bias else None
    product = kernel.multiply(rows, kernel.pack(weight), bias)
    expected = rows.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    assert product.dtype == dtype
    # One rounding, to the dtype, and a sum in float32.
    assert (product.double() - expected).abs().max() <= expected.abs().max() * torch.finfo(dtype).eps * 1.01 + 1e-6


@pytest.mark.parametrize(("name", "dtype"), SERVED)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (48, 16), (130, 257)])
def test_unpacking_gives_back_every_bit(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = matrix(dtype, *shape)
    weight.view(-1)[:: weight.numel() // 7 + 1] = 0.0
    assert torch.equal(KERNELS[name].unpack(KERNELS[name].pack(weight)), weight)


@pytest.mark.parametrize(("name", "dtype"), SERVED)
def test_packing_copies(name: str, dtype: torch.dtype) -> None:
    weight = matrix(dtype)
    before, packed = weight.clone(), KERNELS[name].pack(weight)
    weight.zero_()
    assert torch.equal(KERNELS[name].unpack(packed), before)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=[*KERNELS])
def test_other_dtypes_and_devices_are_refused(kernel: Kernel) -> None:
    assert "float64" in kernel.why_not(torch.float64, CPU)
    assert "cuda" in kernel.why_not(torch.float32, torch.device("cuda"))


def test_float32_of_more_digits_than_float16_has_is_not_held_in_float16() -> None:
    weight = matrix(torch.float32)
    assert FBGEMMKernel().holds(weight)
    weight[3, 3] += weight[3, 3] * 2.0**-20
    assert not FBGEMMKernel().holds(weight)


@pytest.mark.parametrize("too_large", [70000.0, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_beyond_float16_are_not_held(too_large: float, dtype: torch.dtype) -> None:
    weight = matrix(dtype)
    weight[1, 2] = too_large
    assert not FBGEMMKernel().holds(weight)


def test_small_bfloat16_numbers_are_off_by_no_more_than_is_said_and_come_back_whole() -> None:
    kernel, weight = FBGEMMKernel(), torch.zeros(64, 64, dtype=torch.bfloat16)
    weight.view(-1)[:] = torch.logspace(-8, -3, 64 * 64).to(torch.bfloat16)
    packed = kernel.pack(weight)
    assert 0 < len(packed.places) < weight.numel()
    multiplied = kernel.multiply(torch.eye(64), packed, None).T
    assert (multiplied.double() - weight.double()).abs().max() <= kernel.loss(torch.bfloat16)
    assert torch.equal(kernel.unpack(packed), weight)
