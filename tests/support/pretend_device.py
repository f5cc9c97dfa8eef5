"""A pretend accelerator: it computes on the CPU, refuses host tensors as a GPU does and counts what hosts wait for.

Its tensors hold ordinary ones, which nothing reaches but the operations that ``PretendDevice`` passes on. What it
shows: an operation that mixes devices, code that takes any tensor for a CPU's, and how often the host would have to
wait for the device. What it can't: a GPU's kernels and their rounding, speed, memory, streams and races. Uploads are
counted by themselves: from ordinary memory they wait on CUDA, too, but for little where the queue is empty anyway.

torch's key for a device that others add is used under its own name: another one could never be taken back. What stays
registered is a guard that does nothing; to torch there is still no accelerator.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "privateuseone"
_ATEN = torch.ops.aten
_MOVES = {_ATEN._to_copy, _ATEN.copy_, _ATEN.copy}
_INDEXING = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_, _ATEN._unsafe_index}
# Made of other operations, but passed on whole, which is faster: they ask for no numbers.
_WHOLE = {_ATEN.reshape, _ATEN.flatten, _ATEN.linear, _ATEN.matmul, _ATEN.scaled_dot_product_attention, _ATEN.einsum}
_CASTS = {_ATEN.to.dtype}  # likewise; others of its name move
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_READING_VALUE = {  # given a tensor in place of a number, they ask it for the number
    _ATEN.masked_fill.Tensor,
    _ATEN.masked_fill_.Tensor,
    _ATEN.index_fill.int_Tensor,
    _ATEN.index_fill_.int_Tensor,
}


class _Guard(torch._C._acc.DeviceGuard):
    """The guard without which torch slices no tensor of the device."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


_GUARD = _Guard()


class PretendTensor(torch.Tensor):
    """A tensor on the pretend device, and the ordinary one that it stands for."""

    held: torch.Tensor
    # What is copied to the host would become one, too.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as in torch's Parameter

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "PretendTensor":
        with torch.inference_mode(False):  # in which it could be no view of one made outside
            made: PretendTensor = torch.Tensor._make_wrapper_subclass(
                cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=torch.device(NAME, 0)
            )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, *others: Any) -> NoReturn:
        raise RuntimeError(f"{func} was given a tensor of the pretend device while that is off")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PretendTensor({self.held!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert a tensor of the pretend device to numpy: copy it to the host first")
        return self.cpu().numpy()

    def as_subclass(self, cls: Any) -> Any:
        return (
            PretendTensor(self.held) if cls is torch.Tensor else type(cls.__name__, (cls, PretendTensor), {})(self.held)
        )


class PretendDevice(TorchDispatchMode):
    """The device while it is on.

    Attributes:
        waits: how often the host has waited for numbers: ``.item()``, copies to it, shapes that depend on numbers.
        uploads: copies from the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = self.uploads = 0

    def __torch_dispatch__(
        self, func: Any, types: Collection[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = [*_leaves(args), *_leaves(kwargs.values())]
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = {id(tensor.held): tensor for tensor in given if isinstance(tensor, PretendTensor)}
        target = next((leaf.type for leaf in leaves if isinstance(leaf, torch.device)), None)
        if not known and target != NAME:
            return func(*args, **kwargs)
        if _is_composite(func):  # in inference mode torch leaves its parts to others
            with self:
                return func.decompose(*args, **kwargs)
        if func.overloadpacket in _MOVES:
            is_here = target == NAME if target else isinstance(args[0], PretendTensor)
            is_from_here = isinstance(given[-1], PretendTensor)
            self.waits += is_from_here and not is_here
            self.uploads += is_here and not is_from_here
        else:
            is_here = target in {None, NAME}
            self.uploads += _num_uploaded(func, args, given)
            self.waits += bool(known) and _is_reading(func, args, kwargs)
        if target == NAME:
            kwargs["device"] = "cpu"
        result = func(*_each(_held, args), **{name: _each(_held, value) for name, value in kwargs.items()})
        if not is_here:
            return result
        # What is written to in place stays the tensor that it was.
        return _each(lambda out: known[id(out)] if id(out) in known else PretendTensor(out), result)


@cache
def _is_composite(func: Any) -> bool:
    return func.overloadpacket not in _WHOLE and func not in _CASTS and bool(func._can_decompose())


def _num_uploaded(func: Any, args: Sequence[Any], given: Sequence[torch.Tensor]) -> int:
    """Return how many tensors of the host an operation may be given, and copies: indices.

    Numbers in tensors without dimensions may be the host's, too.

    Raises:
        RuntimeError: where it is given others.
    """
    indices = {id(index) for index in args[1]} if func.overloadpacket in _INDEXING else set()
    hosts = [tensor for tensor in given if not isinstance(tensor, PretendTensor)]
    strays = [tensor for tensor in hosts if tensor.dim() and id(tensor) not in indices]
    if strays and len(hosts) < len(given):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in strays)
        raise RuntimeError(f"{func} was given tensors of the pretend device and, from the host, {shapes}")
    return sum(id(tensor) in indices for tensor in hosts)


def _is_reading(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True where the host has to know numbers before it can go on."""
    if func.overloadpacket in _INDEXING:  # a mask becomes indices, unless one number is written
        is_mask = any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in args[1])
        return is_mask and not (len(args) > 2 and args[2].numel() == 1)
    if func in _READING_VALUE:
        return isinstance(args[-1], PretendTensor)
    return kwargs.get("output_size") is None and not _READING.isdisjoint(func.tags)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield an operation's arguments, and what lists among them have."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _each(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return a value with a change made to each tensor in it."""
    if isinstance(value, list | tuple):
        return type(value)(_each(change, each) for each in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def _held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.held if isinstance(tensor, PretendTensor) else tensor


@contextmanager
def pretend_device() -> Iterator[PretendDevice]:
    """The device, on; afterwards torch is as it was."""
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._acc.register_python_privateuseone_device_guard(_GUARD)
    torch._register_device_module(NAME, ModuleType(NAME))
    torch._C._set_only_lift_cpu_tensors(True)  # or torch.tensor(…, device=NAME) goes past the mode
    try:
        with PretendDevice() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)
        delattr(torch, NAME)
        del sys.modules[f"torch.{NAME}"]
