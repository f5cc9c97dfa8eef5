"""The contract of kernels: packed forms of a matrix, and products of a few rows with it.

Laws:
- ``multiply`` is ``rows @ weight.T + bias``, summed in float32 or better and rounded once, to the rows' dtype.
- ``unpack`` gives the matrix that was packed, bit for bit.
- A kernel with fewer digits than a matrix returns False from ``holds`` and None from ``pack``. The remaining error of a
  number is ``loss``.
- A kernel that rounds more than a sum does states this in ``lossy`` and the bound in ``largest_error``. It is opt-in.
- A packed matrix is only read: several threads may multiply by it.

The laws don't say that a row's bits are independent of the other rows. ``specdec/probes/products.py`` probes that, and
rows are padded where they aren't.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch


class Kernel(ABC):
    """One packed form of matrices. A kernel has no state: the caller of ``pack`` stores the packed matrix.

    Attributes:
        lossy: what is rounded, as a sentence without an end; "" where products are the matrix's own.
    """

    lossy: ClassVar[str] = ""

    @abstractmethod
    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        """Return why the kernel can't serve a dtype on a device here, or ""; called once for a model."""

    def holds(self, weight: torch.Tensor) -> bool:
        """Return True where the kernel can pack this matrix, of a dtype that it serves; cheap."""
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
    def pack(self, weight: torch.Tensor) -> Any | None:
        """Return the packed form of a matrix, ``(outputs, inputs)``; None where the kernel can't pack it."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product, ``(..., outputs)``, of rows, ``(..., inputs)``, in their dtype; called for each layer."""

    @abstractmethod
    def unpack(self, packed: Any) -> torch.Tensor:
        """Return the matrix that was packed, ``(outputs, inputs)``."""
