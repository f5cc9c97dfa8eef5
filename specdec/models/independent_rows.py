"""Operations whose rows have the same bits whatever the number of rows, for exact numerics on GPUs.

torch divides a sum among a GPU's threads by how many sums there are: the variance in a norm has other bits for one
token than for the tokens of a tree. Rounding to half precision hides that in all but a few of a thousand tokens. For
products, cuBLAS has kernels for different numbers of rows; whether bits differ depends on the matrix.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch
from torch.overrides import TorchFunctionMode

from specdec.models.split_k import without_split_k

_IS_MEAN: Mapping[Callable[..., Any], bool] = {
    torch.sum: False,
    torch.Tensor.sum: False,
    torch.mean: True,
    torch.Tensor.mean: True,
}
_NAMES = {"axis": "dim", "input": "x"}
_LINEAR = torch.nn.functional.linear
Products = Literal["cublas", "unsplit", "own"]
_DTYPES = torch.float32, torch.bfloat16, torch.float16


class Kernels(Protocol):
    """The kernels; ``independent_rows_kernels.py`` has those of GPUs."""

    def sums(self, rows: torch.Tensor, is_mean: bool) -> torch.Tensor:
        """Return the sums of rows, (rows, size), or their means, in float32: (rows,)."""

    def products(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the products of rows, (rows, inputs), with a matrix, (outputs, inputs), plus the bias, (outputs,)."""


def has_kernels(device: object) -> bool:
    """Return True if exact numerics have kernels of their own for a device."""
    return isinstance(device, torch.device) and device.type == "cuda" and find_spec("triton") is not None


@contextmanager
def independent_rows(device: torch.device, products: Products = "cublas") -> Iterator[None]:
    """Compute sums and means over the last dimension with independent rows in the block.

    On CPUs torch's own sums have independent rows; on GPUs without Triton nothing is changed.

    Args:
        products: of linear layers: cuBLAS's, cuBLAS's with sums that aren't split, or specdec's own. The latter take
            about as long with up to 16 rows, and several times as long with hundreds.
    """
    if not has_kernels(device):
        yield
        return
    from specdec.models import independent_rows_kernels  # Triton is there with torch for CUDA alone

    barred = without_split_k() if products == "unsplit" else nullcontext()
    with barred, IndependentRows(independent_rows_kernels, device.type, products == "own"):
        yield


class IndependentRows(TorchFunctionMode):
    """Replaces sums and means over the last dimension, and linear layers if ``products``.

    Norms of vectors, variances and products of other kinds are torch's own.
    """

    def __init__(self, kernels: Kernels, device_type: str, products: bool) -> None:
        super().__init__()
        self._kernels, self._device_type, self._has_products = kernels, device_type, products

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, found = kwargs or {}, None
        if func in _IS_MEAN:
            named = {_NAMES.get(name, name): value for name, value in kwargs.items()}
            if not named.keys() - {"x", "dim", "keepdim"}:
                found = self._sum(_IS_MEAN[func], *args, **named)
        elif func is _LINEAR and self._has_products:
            found = self._linear(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found

    def _sum(self, is_mean: bool, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor | None:
        """Return the sum or mean; None for those that torch computes."""
        dims = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        if not self._is_covered(x) or dims not in {(-1,), (x.dim() - 1,)}:
            return None
        sums = self._kernels.sums(x.reshape(-1, x.shape[-1]), is_mean).to(x.dtype)
        return sums.view(*x.shape[:-1], 1) if keepdim else sums.view(x.shape[:-1])

    def _linear(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return the product, plus the bias; None for those that torch computes."""
        is_plain = type(weight) in {torch.Tensor, torch.nn.Parameter}
        if not is_plain or not self._is_covered(input) or weight.dim() != 2 or input.dtype != weight.dtype:
            return None
        rows = self._kernels.products(input.reshape(-1, input.shape[-1]), weight, bias)
        return rows.view(*input.shape[:-1], len(weight))

    def _is_covered(self, x: torch.Tensor) -> bool:
        return x.device.type == self._device_type and x.dtype in _DTYPES and x.dim() > 0 and x.numel() > 0
