"""oneDNN's products with a matrix packed once, in the blocks that its kernels read.

The operations are those that torch's inductor uses for frozen models. Their names are private, so they are looked up
when needed; if torch doesn't have them, the kernel is unavailable.
"""

from typing import Any

import torch

from specdec.machine.facts import computes_in_bfloat16
from specdec.models.weights.base import Kernel

_DTYPES = torch.float32, torch.bfloat16


class OneDNNKernel(Kernel):
    """Blocked matrices in the model's own dtype; one layout for every number of rows."""

    def rank(self, dtype: torch.dtype) -> int:
        # AVX-512 without bfloat16 instructions converts the matrix in each product.
        return 1 if dtype == torch.float32 or computes_in_bfloat16(torch.device("cpu")) else 3

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        if device.type != "cpu":
            return f"it is for CPUs, not {device.type}"
        if dtype not in _DTYPES:
            return f"it multiplies float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
        if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return "this torch was built without it"
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "this processor has no bfloat16 products"
        return ""

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        # The number of rows isn't passed: if it is, products of other numbers are slow and have other bits.
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        return packed

    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
        return product

    def unpack(self, packed: Any) -> torch.Tensor:
        dense: torch.Tensor = packed.to_dense()
        return dense
