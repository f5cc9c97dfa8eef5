"""Records a forward pass call by call, to run it again without the model's Python code.

In a small model, a pass spends as much time in modules, hooks and modelling code as in arithmetic. Its calls of torch
differ only in their tensors and the number of nodes, so they are recorded with torch's ``TorchFunctionMode`` and
compiled to one straight-line function. The arithmetic is the same, and so are the bits.

A pass can't be recorded if a number is read from a tensor, if a tensor's shape depends on numbers, or if anything
except attention reads the cache or a mask. ``program.py`` makes a program of two recordings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from specdec.backends.cache import RaggedLayer
from specdec.backends.inputs import Inputs, Outputs
from specdec.models.leaf_call import is_leaf_call
from specdec.models.weights.tensor import PackedWeight

_LINEAR = torch.nn.functional.linear
# Attributes of a tensor that don't depend on its numbers.
_FACTS = {"__get__", "size", "dim", "ndimension", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex"}
_FACTS |= {"__len__", "__hash__", "element_size", "get_device", "is_inference"}
_MODES = {"_set_grad_enabled"}  # without effect in inference mode
_SHAPED_BY_NUMBERS = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique2", "bincount"}
_SHAPED_BY_NUMBERS |= {"one_hot", "tensor_split"}


class _CantRecordError(Exception):
    """Raised if the pass can't be recorded; the message is the reason."""


@dataclass(slots=True)
class Recording:
    """The calls of one pass, one line each, with ``%s`` for integers.

    Attributes:
        rows, width, length: of the pass: its rows, nodes per row, and the longest row's committed tokens.
        lines: the calls, without ``del``.
        integers: the integers of the lines, in order.
        constants: other objects in the lines: functions, weights, modules.
        returned: the names of the outputs: the logits, and hidden states.
        fault: why the pass can't be recorded, or "".
    """

    rows: int
    width: int
    length: int
    lines: list[str] = field(default_factory=list)
    integers: list[int] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    returned: tuple[str, ...] = ()
    fault: str = ""


def record(
    forward: Callable[[], Outputs],
    inputs: Inputs,
    layers: Sequence[RaggedLayer],
    weights: Sequence[torch.Tensor],
    length: int,
) -> tuple[Outputs, Recording]:
    """Run a pass; return its outputs, the logits first, and its recording.

    Args:
        weights: the model's parameters and buffers; a pass that reads any other tensor isn't recorded.
    """
    rows, width = inputs.input_ids.shape
    recorder = _Recorder(inputs, layers, weights, Recording(rows, width, length))
    with recorder:
        outputs = forward()
    return outputs, recorder.ended(outputs)


class _Recorder(TorchFunctionMode):
    """Records each call of torch; a call of attention or a cache counts as one."""

    def __init__(
        self, inputs: Inputs, layers: Sequence[RaggedLayer], weights: Sequence[torch.Tensor], recording: Recording
    ) -> None:
        super().__init__()
        self._recording = recording
        self._names = {id(tensor): name for name, tensor in inputs.named().items()}
        self._names |= {id(layer): "layers[%s]" for layer in layers}
        self._indices = {id(layer): index for index, layer in enumerate(layers)}
        self._weights = {id(weight) for weight in weights}
        self._masks = {id(mask) for mask in inputs.masks.values()}
        self._cached: set[int] = set()  # keys and values as the cache returns them
        self._constants: dict[int, str] = {}
        self._num_names = 0
        self._kept: list[Any] = [inputs]  # an id is an object's only while that lives
        self._placement = layers[0].placement
        self._num_asked = self._placement.num_asked

    def ended(self, outputs: Outputs) -> Recording:
        """Return the recording of a pass that returned these outputs."""
        recording = self._recording
        if self._placement.num_asked != self._num_asked:
            recording.fault = recording.fault or "its code asks for the length of the cache"
        recording.returned = tuple(self._names.get(id(output), "") for output in outputs)
        if not all(recording.returned) and not recording.fault:
            recording.fault = "its logits or hidden states come from elsewhere"
        return recording

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if not self._recording.fault:
            try:
                self._note(func, args, kwargs, output)
            except _CantRecordError as error:
                self._recording.fault = str(error)
        return output

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        name = getattr(func, "__name__", "").partition(".")[0]
        is_write = func is torch.Tensor.__setitem__
        if not (is_write or _tensors(output)):
            if name in _MODES or (name in _FACTS and id(args[0]) not in self._cached):
                return
            raise _CantRecordError(f"its code reads numbers ({name})")
        self._check_reads(func, name, args, kwargs)
        if func is _LINEAR and not kwargs:
            func, args = _as_its_layer(func, args)
        call = self._call(func, args, kwargs)
        self._recording.lines.append(call if is_write else f"{self._bind(output)} = {call}")
        if is_leaf_call(func) and func.__name__ == "update":
            self._cached |= set(map(id, output))

    def _check_reads(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_shaped_by_numbers(name, args):
            raise _CantRecordError(f"a shape depends on numbers ({name})")
        if not is_leaf_call(func) and any(id(each) in self._masks | self._cached for each in _tensors((args, kwargs))):
            raise _CantRecordError(f"its code reads the cache or a mask ({name})")

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        function = self._constant(func)
        given = [*map(self._write, args), *(f"{key}={self._write(value)}" for key, value in kwargs.items())]
        return f"{function}({', '.join(given)})"

    def _bind(self, output: Any) -> str:
        if isinstance(output, list | tuple):
            return f"({' '.join(f'{self._bind(each)},' for each in output)})"
        self._num_names += 1
        name = f"v{self._num_names}"
        if isinstance(output, torch.Tensor):
            self._names[id(output)] = name
            self._kept.append(output)
        return name

    def _write(self, value: Any) -> str:
        """Return the expression for an argument; anything but a tensor or a literal is a constant."""
        if id(value) in self._indices:
            self._recording.integers.append(self._indices[id(value)])
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, torch.Tensor) and id(value) not in self._weights:
            raise _CantRecordError("it reads a tensor that isn't one of its weights")
        if type(value) is int:
            self._recording.integers.append(value)
            return "%s"
        if value is None or isinstance(value, bool):
            return repr(value)
        return self._write_several(value) if isinstance(value, slice | list | tuple | dict) else self._constant(value)

    def _write_several(self, value: slice | list[Any] | tuple[Any, ...] | dict[Any, Any]) -> str:
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._write, (value.start, value.stop, value.step)))})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self._constant(key)}: {self._write(each)}' for key, each in value.items())}}}"
        items = " ".join(f"{self._write(each)}," for each in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"

    def _constant(self, value: Any) -> str:
        if id(value) not in self._constants:
            self._constants[id(value)] = f"c{len(self._constants)}"
            self._recording.constants.append(value)
        return self._constants[id(value)]


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def _is_shaped_by_numbers(name: str, args: tuple[Any, ...]) -> bool:
    """Return True if an output's shape depends on the numbers in a tensor."""
    if name == "__getitem__":
        return any(index.dtype in (torch.bool, torch.uint8) for index in _tensors([args[1]]))
    if name == "repeat_interleave":
        return len(args) == 1 or isinstance(args[1], torch.Tensor)
    return name in _SHAPED_BY_NUMBERS or (name == "where" and len(args) == 1)


def _as_its_layer(linear: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return a product as the call that a packed layer ends in, which is shorter."""
    if len(args) == 3 and type(args[1]) is PackedWeight:
        return args[1].times, (args[0], args[2])
    return linear, args
