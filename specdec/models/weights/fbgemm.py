"""FBGEMM's products with float16 weights, summed in float32.

For float16 models, for bfloat16 models on processors without bfloat16 products, and for float32 models whose numbers
are all representable in float16.
"""

from dataclasses import dataclass
from typing import Any

import torch

from specdec.models.weights.base import Kernel

_LOSS_OF_BFLOAT16 = 2.0**-25
_ROWS_AT_ONCE = 256  # so that unrepresentable numbers are found soon


@dataclass(frozen=True, slots=True)
class _Packed:
    """A matrix in FBGEMM's layout, and the few numbers that float16 can't represent, by their place."""

    product: Any
    dtype: torch.dtype
    places: torch.Tensor
    numbers: torch.Tensor


class FBGEMMKernel(Kernel):
    """Stores weights in float16 if that is exact: half the bytes of float32.

    Only bfloat16 numbers below 2^-17 are rounded in products, by at most 2^-25; ``unpack`` restores them exactly.
    """

    def rank(self, dtype: torch.dtype) -> int:
        return 0 if dtype == torch.float32 else 2

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        if device.type != "cpu":
            return f"it is for CPUs, not {device.type}"
        if dtype not in {torch.float32, torch.bfloat16, torch.float16}:
            return f"it has no way for {str(dtype).removeprefix('torch.')}"
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            return "this torch was built without it"
        return ""

    def holds(self, weight: torch.Tensor) -> bool:
        allowed = self.loss(weight.dtype)
        return all(_error(part) <= allowed for part in torch.split(weight.detach(), _ROWS_AT_ONCE))

    def loss(self, dtype: torch.dtype) -> float:
        return _LOSS_OF_BFLOAT16 if dtype == torch.bfloat16 else 0.0

    def pack(self, weight: torch.Tensor) -> _Packed:
        weight = weight.detach()
        places = (weight.to(torch.float16).to(weight.dtype) != weight).flatten().nonzero().flatten()
        numbers = weight.flatten()[places]
        packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)
        return _Packed(packed, weight.dtype, places, numbers)

    def multiply(self, rows: torch.Tensor, packed: _Packed, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows.float(), packed.product)
        if bias is not None:
            product += bias
        return product.to(rows.dtype)

    def unpack(self, packed: _Packed) -> torch.Tensor:
        dense: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(packed.product)[0].to(packed.dtype)
        dense.view(-1)[packed.places] = packed.numbers
        return dense


def _error(numbers: torch.Tensor) -> float:
    """Return the largest error of float16 for some numbers; infinity if one is too large or NaN."""
    error = (numbers.float() - numbers.to(torch.float16).float()).abs().amax()
    return float(error.nan_to_num(float("inf")))
