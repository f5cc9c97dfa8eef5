"""A packed parameter: a tensor whose products are computed by a kernel, and that reads like the dense matrix.

Packing affects only the tensor. Layers keep their class, their hooks and their parameters' identity, so adapters,
``state_dict``, ``deepcopy`` and transformers' own ``generate`` work as before.

A packed matrix is read-only: an operator that would write to it raises ``ModelError`` before anything is changed. Code
that takes a view or the memory address makes the matrix dense; it is no longer packed and may be written to.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from specdec.errors import ModelError
from specdec.models.weights.matrix import Matrix

_LINEAR = torch.nn.functional.linear
_aten = torch.ops.aten
_SHARES_MEMORY = {_aten.set_.source_Tensor, _aten.set_.source_Tensor_storage_offset}  # their schemas don't say so
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a property of C's
_READS_MEMORY = {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.__dlpack_device__,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.storage,
    torch.Tensor.share_memory_,
}

_WORDS = 8192  # of a row of a checksum
_ROWS = 64  # read at a time, so that they are in the processor's cache for the second sum


class PackedWeight(torch.Tensor):
    """A weight matrix as its layer's parameter.

    The kernel computes products of plain rows while no gradient is needed. Every other operation reads a dense copy. An
    operation that returns a view makes the matrix dense permanently; one that writes to a packed matrix raises
    ``ModelError``.
    """

    matrix: Matrix
    is_transposed: bool  # as in Conv1D, whose matrix is (inputs, outputs)
    plain_dtype: torch.dtype  # to be read without going through __torch_function__

    @staticmethod
    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, **others: Any) -> Any:
        """Make an ordinary parameter, since other libraries replace a parameter by ``type(parameter)(data)``."""
        return torch.nn.Parameter(data, requires_grad)

    @classmethod
    def standing_for(cls, matrix: Matrix, like: torch.Tensor, is_transposed: bool = False) -> "PackedWeight":
        """Return a weight for a matrix, with the shape, dtype and device of ``like``."""
        made: PackedWeight = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device, requires_grad=False
        )
        made.matrix, made.is_transposed, made.plain_dtype = matrix, is_transposed, like.dtype
        return made

    @classmethod
    def of_dense(cls, dense: torch.Tensor, is_transposed: bool = False) -> "PackedWeight":
        """Return a weight for a matrix that isn't packed."""
        kept = dense.detach()
        return cls.standing_for(Matrix(None, kept=kept.T if is_transposed else kept), dense, is_transposed)

    @property
    def is_packed(self) -> bool:
        """True while a kernel multiplies."""
        return self.matrix.kernel is not None

    def as_parameter(self, requires_grad: bool) -> "PackedWeight":
        """Make it a parameter, and return it."""
        self._is_param = True  # isinstance(…, torch.nn.Parameter) reads this from tensors of other classes
        return self.requires_grad_(requires_grad)  # type: ignore[return-value]  # itself

    def unpacked(self) -> torch.Tensor:
        """Return the matrix as an ordinary tensor in its layer's shape; not to be written to."""
        dense = self.matrix.dense()
        return dense.T.contiguous() if self.is_transposed else dense

    def checksum(self) -> str:
        """Return the checksum of the matrix in its layer's shape; computed once while it is packed, hence read-only."""
        if not self.is_packed:
            return checksum_of(self.make_dense())
        if self.matrix.checksum is None:
            self.matrix.checksum = checksum_of(self.unpacked())
        return self.matrix.checksum

    def make_dense(self) -> torch.Tensor:
        """Drop the packed form, and return the matrix in its layer's shape, which may be written to."""
        dense = self.matrix.make_dense(self.is_transposed)
        return dense.T if self.is_transposed else dense

    def _take(self, other: "PackedWeight") -> None:
        self.matrix, self.is_transposed, self.plain_dtype = other.matrix, other.is_transposed, other.plain_dtype

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _LINEAR:
            rows, weight, bias = args if len(args) == 3 else _arguments_of_linear(*args, **kwargs)
            if type(weight) is PackedWeight:
                return weight.times(rows, bias)
        elif func is torch.addmm and not kwargs and type(args[2]) is PackedWeight and args[2].is_transposed:
            bias, rows, weight = args
            if bias.dim() == 1:
                return weight.times(rows, bias)
        if func in _READS_MEMORY and isinstance(args[0], cls):  # and may write there
            args = args[0].make_dense(), *args[1:]
        with torch._C.DisableTorchFunctionSubclass():
            return _INSTEAD.get(func, func)(*args, **kwargs)

    def times(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return ``linear`` of rows, ``(..., inputs)``."""
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
            return cls.standing_for(args[0].matrix, args[0], args[0].is_transposed)
        if func is _aten._to_copy.default:  # possibly a cast or a move of the layer's parameter
            return cls.of_dense(func(args[0].unpacked(), **kwargs), args[0].is_transposed)
        written, is_aliased = _accesses(func, args, kwargs)
        for each in written:
            if isinstance(each, cls):
                each.check_writable(str(func))
        shares_memory = func in _SHARES_MEMORY or is_aliased
        wrapped: dict[int, PackedWeight] = {}  # by the dense tensor that replaces it

        def plain(each: Any) -> Any:
            if not isinstance(each, cls):
                return each
            dense = each.make_dense() if shares_memory or not each.is_packed else each.unpacked()
            wrapped[id(dense)] = each
            return dense

        plain_args, plain_kwargs = tree_map(plain, (args, kwargs))
        output = func(*plain_args, **plain_kwargs)
        # An in-place operator returns the tensors that it wrote to.
        return tree_map(lambda each: wrapped.get(id(each), each), output) if written else output

    def check_writable(self, operator: str) -> None:
        """Refuse a write to a packed matrix.

        Raises:
            ModelError: with the remedy.
        """
        if self.is_packed:
            raise ModelError(
                f"{operator} writes to a weight of shape {tuple(self.shape)}, which is read-only while a specdec "
                "generator has it packed: call generator.close() before you change the model, or make the generator "
                "with weights='stock'"
            )

    def __copy__(self) -> "PackedWeight":
        copied = PackedWeight.standing_for(self.matrix, self, self.is_transposed)
        return copied.as_parameter(self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Copy to an ordinary tensor, because the copy belongs to no generator that would unpack it."""
        if id(self) not in memo:
            dense = self.unpacked().detach().clone(memory_format=torch.contiguous_format)
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(dense, self.requires_grad) if is_parameter else dense
        copy: torch.Tensor = memo[id(self)]
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        dense = self.unpacked().clone()
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter, (dense, self.requires_grad)
        return dense.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch's

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]  # torch's has an argument of its own
        return f"PackedWeight of\n{self.unpacked()!r}"


class _Dense(torch.autograd.Function):
    """The dense matrix, whose gradient is passed on to the packed one."""

    @staticmethod
    def forward(ctx: Any, weight: PackedWeight) -> torch.Tensor:  # noqa: ARG004 - torch's arguments
        return weight.unpacked().detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's arguments
        return gradient


def _arguments_of_linear(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:  # noqa: A002 - torch's
    return input, weight, bias


def _set_data(weight: torch.Tensor, value: torch.Tensor) -> None:
    """Do ``weight.data = value``, as casting or moving a model and merging an adapter do."""
    if isinstance(weight, PackedWeight):
        taken = value if isinstance(value, PackedWeight) else PackedWeight.of_dense(value, weight.is_transposed)
    else:
        taken = value.make_dense() if isinstance(value, PackedWeight) else value  # type: ignore[assignment]  # a tensor
    _SET_DATA(weight, taken)
    if isinstance(weight, PackedWeight):
        weight._take(taken)


def _set_item(weight: torch.Tensor, index: Any, value: Any) -> None:
    """Do ``weight[index] = value``."""
    if isinstance(weight, PackedWeight):
        weight.check_writable("assigning to an item")
        weight = weight.make_dense()
    weight[index] = value.unpacked() if isinstance(value, PackedWeight) else value


_INSTEAD: dict[Callable[..., Any], Callable[..., Any]] = {
    _SET_DATA: _set_data,
    _aten.set_data.default: _set_data,
    torch.Tensor.__setitem__: torch.no_grad()(_set_item),
}


def _accesses(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], bool]:
    """Return what an operator writes to, and whether its output shares memory with an argument."""
    aliases = {argument.name: argument.alias_info for argument in func._schema.arguments}
    given = dict(zip(aliases, args, strict=False)) | kwargs
    written = tree_leaves([value for name, value in given.items() if aliases[name] and aliases[name].is_write])
    return written, any(alias and not alias.is_write for alias in aliases.values())


@torch.no_grad()
def checksum_of(tensor: torch.Tensor) -> str:
    """Return a digest of a plain tensor's bits in the order of its elements, whatever its shape and dtype.

    It takes about as long as reading the memory: sums along the rows and columns of a square. The bits are read as
    64-bit integers, in rows of 64 KiB. A single changed number always changes its row's sum. Exchanging two numbers,
    rows or columns of a matrix changes a sum along one of the two directions. Sums are exact integers, so they don't
    depend on the number of threads.
    """
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    num_whole = len(flat) - len(flat) % (8 * _WORDS)
    words = flat[:num_whole].view(torch.int64).view(-1, _WORDS)
    by_row, by_column = [], torch.zeros(_WORDS, dtype=torch.int64, device=tensor.device)
    for start in range(0, len(words), _ROWS):
        rows = words[start : start + _ROWS]
        by_row.append(rows.sum(1))
        by_column += rows.sum(0) * (2 * start + 1)  # odd, so that multiplication loses no bits
    digest = blake2b(digest_size=16)
    if by_row:
        digest.update(torch.cat([*by_row, by_column]).cpu().numpy().tobytes())
    digest.update(flat[num_whole:].cpu().numpy().tobytes())
    return digest.hexdigest()
