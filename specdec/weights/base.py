"""The contract of kernels: ways to hold a matrix, and to multiply a few rows by it.

Laws:
- ``multiply`` is ``rows @ weight.T + bias``, summed in float32 or better and rounded once, to the rows' dtype.
- ``unpack`` gives the matrix that was packed, bit for bit.
- A kernel that holds fewer digits than a matrix has says so by ``holds``, and isn't given that matrix; ``pack`` gives
  None for it. What a product may lack all the same is stated by ``loss``.
- One that rounds more than a sum says so by ``lossy``, and how much by ``largest_error``. It serves who asks by name.
- Whatever is packed is only read: several threads may multiply by it.

That a row's bits don't depend on the other rows is no law. It is probed (``specdec/probes/products.py``), and rows are
padded where they do.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch


class Kernel(ABC):
    """A way to hold matrices. An object has no state: what it packs is kept by whoever asked for it.

    Attributes:
        lossy: what is rounded, as a sentence without an end; "" where products are the matrix's own.
    """

    lossy: ClassVar[str] = ""

    @abstractmethod
    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        """Return why it can't serve a dtype on a device here, or ""."""

    def holds(self, weight: torch.Tensor) -> bool:
        """Return True where it can hold this matrix, of a dtype that it serves; cheap."""
        return True

    def loss(self, dtype: torch.dtype) -> float:
        """Return the largest difference between a number of a dtype and what is multiplied in its place."""
        return 0.0

    def largest_error(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the largest error of a right product, ``(rows, outputs)``, of some rows, ``(rows, inputs)``."""
        x, w = rows.double(), weight.double()
        # A sum in float32 errs by less than 2^-12 of the sum of sizes, and is rounded once.
        of_sum = 2.0**-12 * (x.abs() @ w.abs().T)
        rounding = torch.finfo(weight.dtype).eps * (x @ w.T).abs()
        return of_sum + rounding + self.loss(weight.dtype) * x.abs().sum(-1, keepdim=True)

    @abstractmethod
    def pack(self, weight: torch.Tensor) -> Any | None:
        """Return a matrix, ``(outputs, inputs)``, as the kernel holds it; None where it can't hold this one."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product, ``(..., outputs)``, of rows, ``(..., inputs)``, in their dtype."""

    @abstractmethod
    def unpack(self, packed: Any) -> torch.Tensor:
        """Return the matrix that was packed, ``(outputs, inputs)``."""
