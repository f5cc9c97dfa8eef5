"""The contract of kernels, which pack a matrix and multiply a few rows by it.

Laws:
- ``multiply`` is ``rows @ weight.T + bias``, summed in float32 or better and rounded once, to the rows' dtype.
- ``unpack`` returns the matrix that was packed, bit for bit.
- If a kernel can't represent a matrix, ``holds`` returns False, and ``pack`` isn't called. ``loss`` bounds the
  remaining error of a number.
- A kernel with more rounding than a sum's describes it in ``lossy`` and bounds it in ``largest_error``. It is opt-in.
- A packed matrix is read-only, so several threads may multiply by it.

The laws don't require that a row's bits are independent of the other rows. ``specdec/runtime/probes/products.py``
tests that, and rows are padded if they aren't independent.

A model is packed by the suitable kernel of the lowest ``rank``, whether or not another would be faster on its shapes:
timing them chose the same kernel on every machine that was measured.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch


class Kernel(ABC):
    """One packed form of matrices. A kernel has no state: the caller of ``pack`` stores the packed matrix.

    Attributes:
        lossy: what is rounded, as the start of a sentence; "" if products are exact up to rounding of the sum.
    """

    lossy: ClassVar[str] = ""

    def rank(self, dtype: torch.dtype) -> int:
        """Return the place in the order in which kernels are tried; of equal ranks, the first name is first.

        FBGEMM's rank in float32 is 0: it stores half of the bytes where float16 can represent all numbers. oneDNN's is
        1 in float32, and in bfloat16 on processors with bfloat16 instructions, and 3 elsewhere. FBGEMM's is 2 in half
        precision. By default a kernel is tried after these.
        """
        return 4

    @abstractmethod
    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        """Return why the kernel doesn't support a dtype on a device here, or ""; called once per model."""

    def holds(self, weight: torch.Tensor) -> bool:
        """Return True if the kernel can pack this matrix, which has a supported dtype; cheap."""
        return True

    def loss(self, dtype: torch.dtype) -> float:
        """Return the largest difference between a number of a dtype and the number that is multiplied instead."""
        return 0.0

    def largest_error(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the bound on a correct product's error, ``(rows, outputs)``, for rows of shape ``(rows, inputs)``."""
        x, w = rows.double(), weight.double()
        # A sum in float32 errs by less than 2^-12 of the sum of sizes, and is rounded once.
        of_sum = 2.0**-12 * (x.abs() @ w.abs().T)
        rounding = torch.finfo(weight.dtype).eps * (x @ w.T).abs()
        return of_sum + rounding + self.loss(weight.dtype) * x.abs().sum(-1, keepdim=True)

    @abstractmethod
    def pack(self, weight: torch.Tensor) -> Any:
        """Return the packed form of a matrix that the kernel ``holds``, ``(outputs, inputs)``."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product, ``(..., outputs)``, of rows, ``(..., inputs)``, in the rows' dtype."""

    @abstractmethod
    def unpack(self, packed: Any) -> torch.Tensor:
        """Return the matrix that was packed, ``(outputs, inputs)``."""
