"""FBGEMM's products of 8-bit integers: half of bfloat16's bytes, and lossy.

Each row of a weight and each row that is multiplied by it has its own scale. Sums of integers are exact, so rows are
independent. The operations are those of torch's quantised models, whose tensor types torch has deprecated.
"""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from specdec.models.weights.base import Kernel

_LARGEST = 127
_PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"  # of float32 rows, which are rounded by a scale
_ROWS_AT_ONCE = 1024
_LEAST_SCALE = 2.0**-100  # rows of zeros need a scale, too


@dataclass(frozen=True, slots=True)
class _Packed:
    """A matrix in FBGEMM's layout, and the original."""

    product: Any
    dense: torch.Tensor


class Int8Kernel(Kernel):
    """Rounds weights, and the rows that are multiplied by them, to 8 bits; lossy, so opt-in by name."""

    lossy: ClassVar[str] = "weights and activations are rounded to 8 bits"

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        if device.type != "cpu":
            return f"it is for CPUs, not {device.type}"
        if dtype not in {torch.float32, torch.bfloat16, torch.float16}:
            return f"it has no way for {str(dtype).removeprefix('torch.')}"
        if "fbgemm" not in torch.backends.quantized.supported_engines or not hasattr(torch.ops.quantized, _PRODUCT):
            return "this torch was built without it"
        if not torch.cpu._is_vnni_supported():
            return "this processor's 8-bit products may overflow"
        return ""

    def holds(self, weight: torch.Tensor) -> bool:
        return bool(weight.detach().isfinite().all())

    def largest_error(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x, w = rows.double().abs(), weight.double().abs()
        of_weights = x.sum(-1, keepdim=True) * w.amax(-1) / (2 * _LARGEST)
        of_rows = x.amax(-1, keepdim=True) * w.sum(-1) / (2 * _LARGEST)
        of_both = x.shape[-1] * x.amax(-1, keepdim=True) * w.amax(-1) / (2 * _LARGEST) ** 2
        return super().largest_error(rows, weight) + 1.01 * (of_weights + of_rows + of_both)

    def pack(self, weight: torch.Tensor) -> _Packed:
        dense = weight.detach().clone(memory_format=torch.contiguous_format)
        scale = (dense.abs().amax(1).float() / _LARGEST).clamp_min_(_LEAST_SCALE)
        parts = zip(torch.split(dense, _ROWS_AT_ONCE), torch.split(scale, _ROWS_AT_ONCE), strict=True)
        rounded = torch.cat([(part / by[:, None]).round_().to(torch.int8) for part, by in parts])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*quantized tensor creation functions", UserWarning)
            quantised = torch._make_per_channel_quantized_tensor(
                rounded, scale.double(), torch.zeros(len(scale), dtype=torch.int64), 0
            )
            return _Packed(torch.ops.quantized.linear_prepack(quantised, None), dense)

    def multiply(self, rows: torch.Tensor, packed: _Packed, bias: torch.Tensor | None) -> torch.Tensor:
        shape, rows = rows.shape[:-1], rows.reshape(-1, rows.shape[-1])
        scaled = rows.float() if rows.dtype != torch.float32 else rows.clone()
        scale = scaled.abs().amax(-1, keepdim=True).clamp_min_(_LEAST_SCALE)
        product: torch.Tensor = getattr(torch.ops.quantized, _PRODUCT).default(
            scaled.div_(scale), 1 / _LARGEST, _LARGEST + 1, packed.product
        )
        product *= scale
        if bias is not None:
            product += bias
        return product.to(rows.dtype).view(*shape, -1)

    def unpack(self, packed: _Packed) -> torch.Tensor:
        return packed.dense.clone()
