"""Packs a model's weights in place, and unpacks them."""

import ctypes
import mmap
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from specdec.errors import is_out_of_memory, plural
from specdec.models.weights.base import Kernel
from specdec.models.weights.layers import ProductLayer
from specdec.models.weights.matrix import JoinedMatrix, Matrix
from specdec.models.weights.tensor import PackedWeight, checksum_of

_MOST_KEPT = 2**26  # bytes freed before memory is returned to the system
_PAGE_OUT = 21  # madvise's MADV_PAGEOUT: Linux drops a file's pages and reads them again on access
_OWN = {"matrix", "is_transposed", "plain_dtype", "_is_param"}  # attributes of packed weights


def pack(
    kernel: Kernel,
    groups: Iterable[Sequence[ProductLayer]],
    row_multiple: Callable[[Any, torch.Tensor], int] = lambda *_: 1,
    on_group: Callable[[], object] = lambda: None,
) -> None:
    """Pack the weights of some layers, each group as one matrix, group by group.

    At most one group's weights are in memory twice. A weight stays stock if another object refers to it: a view, a weak
    reference or a profiler's record. A gradient graph made before can't be run backward afterwards.

    Args:
        row_multiple: returns the multiple to which rows are padded, for a packed matrix and the same in dense form.
    """
    freed = 0
    for group in groups:
        for layer, matrix in zip(group, _packed(kernel, group, row_multiple), strict=True):
            matrix.checksum = checksum_of(layer.weight)  # unpacking it later would cost more
            _let_go_of_pages(layer.weight)
            _replace(layer.weight, PackedWeight.standing_for(matrix, layer.weight, layer.is_transposed))
        on_group()
        freed += sum(layer.weight.nbytes for layer in group)
        if freed > _MOST_KEPT:
            freed = _return_memory()
    _return_memory()


def _return_memory() -> int:
    """Return freed memory to the system through the C library, because blocks of this size add up to a model."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return 0


def _let_go_of_pages(weight: torch.Tensor) -> None:
    """Let the system drop a weight's pages of a checkpoint file, which is mapped while any of its tensors is in use.

    This is a hint to the system and changes no number, even for memory that isn't a file's.
    """
    if not weight.is_cpu:
        return
    size, start = mmap.PAGESIZE, weight.data_ptr()
    first = -(-start // size) * size
    length = (start + weight.nbytes) // size * size - first
    if length > 0:
        with suppress(OSError, AttributeError):  # no madvise on this system
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _PAGE_OUT)


def _packed(
    kernel: Kernel, group: Sequence[ProductLayer], row_multiple: Callable[[Any, torch.Tensor], int]
) -> list[Matrix]:
    matrices = [layer.matrix for layer in group]
    whole = torch.cat(matrices) if len(group) > 1 else matrices[0]
    packed = kernel.pack(whole)
    biases = [layer.bias for layer in group]
    joined = JoinedMatrix(kernel, packed, [*map(len, matrices)], biases, row_multiple(packed, whole))
    return [Matrix(joined, index, matrices[index] if each.is_looked_up else None) for index, each in enumerate(group)]


def unpack(model: torch.nn.Module) -> None:
    """Make every weight of a model an ordinary parameter again, with its original bits.

    One that something else refers to meanwhile keeps its class, and is dense.

    Warns:
        UserWarning: if memory runs out; the weights that it lacks for stay packed, and compute what they computed.
    """
    freed = num_left = 0
    for parameter in list(model.parameters()):
        if isinstance(parameter, PackedWeight):
            try:
                _make_plain(parameter)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                num_left += 1
                continue
            freed += parameter.nbytes
            if freed > _MOST_KEPT:
                freed = _return_memory()
    if num_left:
        warnings.warn(f"memory ran out: {plural(num_left, 'weight')} couldn't be unpacked", stacklevel=2)


def _make_plain(parameter: PackedWeight) -> None:
    if not _replace(parameter, torch.nn.Parameter(parameter.unpacked().contiguous(), requires_grad=False)):
        parameter.make_dense()


def packed_weights(model: torch.nn.Module) -> list[PackedWeight]:
    """Return a model's packed parameters."""
    return [each for each in model.parameters() if isinstance(each, PackedWeight) and each.is_packed]


def _replace(parameter: torch.Tensor, by: torch.Tensor) -> bool:
    """Give a parameter the contents and class of another tensor, so that references to it stay valid.

    Returns:
        False if another object refers to the parameter's contents or it has hooks; it is unchanged then.
    """
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        return False
    gradient, attributes = parameter.grad, {name: value for name, value in vars(parameter).items() if name not in _OWN}
    requires_grad, own_class, own_attributes = parameter.requires_grad, parameter.__class__, parameter.__dict__
    try:
        torch.utils.swap_tensors(parameter, by)  # type: ignore[no-untyped-call]  # torch's
    except RuntimeError:
        # If a C++ object refers to it, such as a profiler's record, everything except the contents was swapped already.
        parameter.__class__, parameter.__dict__ = own_class, own_attributes
        return False
    if isinstance(parameter, PackedWeight):
        parameter.as_parameter(requires_grad)
    else:
        parameter.requires_grad_(requires_grad)
    vars(parameter).update(attributes)
    parameter.grad = gradient
    return True
