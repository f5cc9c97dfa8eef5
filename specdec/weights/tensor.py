"""A parameter that is packed: a tensor whose products go to a kernel, and that is dense to everybody else.

Everything about packing is in the tensor. Layers keep their class, their hooks and their parameters' identity, so that
adapters, optimizers, ``state_dict``, ``deepcopy`` and transformers' own loop go on as before.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch.utils._pytree import tree_map

from specdec.weights.matrix import Matrix, WholeMatrix

_LINEAR = torch.nn.functional.linear
_aten = torch.ops.aten
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a property of C's
_READS_MEMORY = {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.storage,
    torch.Tensor.share_memory_,
}


class PackedWeight(torch.Tensor):
    """A weight matrix as its layer's parameter.

    Products of plain rows go to the kernel while nothing wants gradients. Every other operation gets the dense matrix:
    what is written is packed again, and who takes a view, which might be written to, leaves the matrix dense.
    """

    matrix: Matrix
    is_transposed: bool  # as in Conv1D, whose matrix is (inputs, outputs)
    plain_dtype: torch.dtype  # to be read without going through __torch_function__

    @staticmethod
    def __new__(cls, matrix: Matrix, like: torch.Tensor, is_transposed: bool = False) -> "PackedWeight":
        """Stand for a matrix, with the shape, dtype and device of ``like``."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device, requires_grad=False
        )
        made.matrix, made.is_transposed, made.plain_dtype = matrix, is_transposed, like.dtype
        return made

    @classmethod
    def of_dense(cls, dense: torch.Tensor, is_transposed: bool = False) -> "PackedWeight":
        """Stand for a matrix that is not packed."""
        kept = dense.detach()
        return cls(WholeMatrix(None, None, kept.T if is_transposed else kept), dense, is_transposed)

    def as_parameter(self, requires_grad: bool) -> "PackedWeight":
        """Make it a parameter, and return it."""
        self._is_param = True  # what isinstance(…, torch.nn.Parameter) asks of tensors of other classes
        return self.requires_grad_(requires_grad)  # type: ignore[return-value]  # itself

    def unpacked(self) -> torch.Tensor:
        """Return the matrix as an ordinary tensor in its layer's shape; not to be written to."""
        dense = self.matrix.dense()
        return dense.T.contiguous() if self.is_transposed else dense

    def _loosened(self) -> torch.Tensor:
        dense = self.matrix.loosen(self.is_transposed)
        return dense.T if self.is_transposed else dense

    def _assign(self, dense: torch.Tensor) -> None:
        self.matrix.assign(dense.T if self.is_transposed else dense)

    def _take(self, other: "PackedWeight") -> None:
        self.matrix, self.is_transposed, self.plain_dtype = other.matrix, other.is_transposed, other.plain_dtype

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _LINEAR and not kwargs and type(args[1]) is PackedWeight:
            return args[1]._times(args[0], args[2] if len(args) > 2 else None)
        if (
            func is torch.addmm
            and not kwargs
            and type(args[2]) is PackedWeight
            and args[2].is_transposed
            and args[0].dim() == 1
        ):
            return args[2]._times(args[1], args[0])
        kwargs = kwargs or {}
        if func == _SET_DATA:  # another object at each look
            return _set_data(*args)
        if func is torch.Tensor.__setitem__ and isinstance(args[0], cls):
            with torch.no_grad():
                dense = args[0].unpacked()
                dense[args[1]] = args[2]
                return args[0]._assign(dense)
        with torch._C.DisableTorchFunctionSubclass():
            if func in _READS_MEMORY:
                return func(args[0]._loosened(), *args[1:], **kwargs)
            return func(*args, **kwargs)

    def _times(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if torch.is_grad_enabled() and (self.requires_grad or rows.requires_grad):
            dense = _Dense.apply(self)  # type: ignore[no-untyped-call]  # torch's
            return _LINEAR(rows, dense.T if self.is_transposed else dense, bias)
        is_plain = type(rows) is torch.Tensor and rows.dtype == self.plain_dtype and rows.is_cpu
        if is_plain and not torch.is_autocast_enabled("cpu"):
            return self.matrix.multiply(rows, bias)
        return _LINEAR(rows, self.matrix.dense(), bias)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch says that it is none
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in {_aten.detach.default, _aten.alias.default}:
            return cls(args[0].matrix, args[0], args[0].is_transposed)
        if func is _aten._to_copy.default:  # a cast, or a move, of the layer's parameter perhaps
            return cls.of_dense(func(args[0].unpacked(), **kwargs), args[0].is_transposed)
        aliases = [each.alias_info for each in func._schema.arguments if each.alias_info is not None]
        is_viewed = any(not alias.is_write for alias in aliases)
        dense: dict[int, tuple[PackedWeight, torch.Tensor]] = {}

        def plain(given: Any) -> Any:
            if not isinstance(given, cls):
                return given
            if id(given) not in dense:
                dense[id(given)] = given, given._loosened() if is_viewed else given.unpacked()
            return dense[id(given)][1]

        output = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        if any(alias.is_write for alias in aliases):
            for weight, written in dense.values():
                weight._assign(written)
                output = weight if output is written else output
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeight":
        if id(self) not in memo:
            copied = PackedWeight(deepcopy(self.matrix, memo), self, self.is_transposed)
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = copied.as_parameter(self.requires_grad) if is_parameter else copied
        copy: PackedWeight = memo[id(self)]
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        dense = self.unpacked().contiguous()
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter, (dense, self.requires_grad)
        return dense.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch's

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]  # torch's has an argument of its own
        return f"PackedWeight of\n{self.unpacked()!r}"


class _Dense(torch.autograd.Function):
    """The dense matrix, whose gradient is the packed one's."""

    @staticmethod
    def forward(ctx: Any, weight: PackedWeight) -> torch.Tensor:  # noqa: ARG004 - torch's arguments
        return weight.unpacked().detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - as above
        return gradient


def _set_data(weight: torch.Tensor, value: torch.Tensor) -> None:
    """``weight.data = value``: what casting and moving a model, and merging an adapter, do."""
    if isinstance(weight, PackedWeight):
        taken = value if isinstance(value, PackedWeight) else PackedWeight.of_dense(value, weight.is_transposed)
    else:
        taken = value.unpacked() if isinstance(value, PackedWeight) else value  # type: ignore[assignment]  # a tensor
    with torch._C.DisableTorchFunctionSubclass():
        _SET_DATA(weight, taken)
    if isinstance(weight, PackedWeight):
        weight._take(taken)
