"""A pass recorded call by call, and run again without the model's Python.

In a small model a pass spends as long in modules, hooks and modelling code as in arithmetic. The calls of torch that a
pass makes are the same each time but for their tensors and the number of nodes, so they are recorded, through torch's
own ``TorchFunctionMode``, and written down as one straight function. The arithmetic is the same, so the bits are.

Two recordings are compared, of different tokens, contexts and, where they can differ, numbers of rows and nodes.
Integers in which they differ must be these numbers; any other difference means that the Python depends on the input,
and the pass can't be recorded. Nor can it where a number is read from a tensor, where a tensor's shape depends on
numbers, or where anything but attention itself reads the cache or a mask.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType, MethodWrapperType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from specdec.backends.cache import RaggedLayer
from specdec.models.leaf_call import is_one_call
from specdec.weights.tensor import PackedWeight

_LINEAR = torch.nn.functional.linear
# Facts about a tensor that don't read its numbers.
_FACTS = {"__get__", "size", "dim", "ndimension", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex"}
_FACTS |= {"__len__", "__hash__", "element_size", "get_device", "is_inference"}
_BY_VALUE = float, complex, str, torch.device, MethodType, MethodWrapperType
_MODES = {"_set_grad_enabled"}  # without effect in inference mode
_SHAPED_BY_NUMBERS = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique2", "bincount"}
_SHAPED_BY_NUMBERS |= {"one_hot", "tensor_split"}


class _CantRecordError(Exception):
    """The pass can't be recorded; the message says why."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors that a pass reads: ids and positions, (rows, width), masks by name, and the columns wanted."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    masks: Mapping[str, torch.Tensor]
    columns: torch.Tensor | None

    def kind(self) -> tuple[object, ...]:
        """Return what programs are made for: one row or several, one node or several, and which masks are one."""
        rows, width = self.input_ids.shape
        masks = [id(mask) for mask in self.masks.values()]
        return rows == 1, width == 1, tuple(map(masks.index, masks))

    def named(self) -> dict[str, torch.Tensor]:
        """Return them by the names that a program has for them."""
        columns = {} if self.columns is None else {"columns": self.columns}
        masks = {f"mask_{index}": mask for index, mask in enumerate(self.masks.values())}
        return {"input_ids": self.input_ids, "positions": self.positions, **columns, **masks}


@dataclass(slots=True)
class Recording:
    """One pass's calls, a line each, with ``%s`` for integers.

    Attributes:
        rows, width, length: of the pass: its rows, nodes per row, and the longest row's committed tokens.
        lines: the calls; ``del`` is left out.
        integers: those in the lines, in their order.
        constants: other objects in the lines: functions, weights, modules.
        returned: the name of the logits.
        fault: why the pass can't be recorded, or "".
    """

    rows: int
    width: int
    length: int
    lines: list[str] = field(default_factory=list)
    integers: list[int] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    returned: str = ""
    fault: str = ""


Run = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Program:
    """A pass as a function of its inputs; ``rows`` or ``width`` of None serve any number of them above one."""

    rows: int | None
    width: int | None
    run: Run

    def is_for(self, rows: int, width: int) -> bool:
        """Return True where the program may serve this number of rows and nodes."""
        return self.rows in {None, rows} and self.width in {None, width}

    def __call__(self, inputs: Inputs, layers: Sequence[RaggedLayer], length: int) -> torch.Tensor:
        """Return the logits, (rows, columns, vocab), and write to the cache as the model does."""
        return self.run(*inputs.input_ids.shape, length, layers, **inputs.named())


def record(
    forward: Callable[[], torch.Tensor],
    inputs: Inputs,
    layers: Sequence[RaggedLayer],
    weights: Sequence[torch.Tensor],
    length: int,
) -> tuple[torch.Tensor, Recording]:
    """Return a pass's logits, and its recording.

    ``weights``: the model's parameters and buffers; there is no recording of a pass that reads any other tensor.
    """
    rows, width = inputs.input_ids.shape
    recorder = _Recorder(inputs, layers, weights, Recording(rows, width, length))
    with recorder:
        logits = forward()
    return logits, recorder.ended(logits)


def is_telling(first: Recording, rows: int, width: int, length: int) -> bool:
    """True where a pass of such sizes differs from a recording so that each integer shows which size it follows."""
    pairs = (first.rows, rows), (first.width, width), (first.length, length)
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    return first.length != length and len({*changed}) == len(changed)


def joined(first: Recording, second: Recording) -> Program | str:
    """Return the program that two recordings agree on, of contexts that differ; or why they agree on none."""
    if fault := first.fault or second.fault:
        return fault
    if first.lines != second.lines or first.returned != second.returned:
        return "two passes make other calls"
    if not all(map(_is_same, first.constants, second.constants)):
        return "two passes read other objects"
    integers = []
    for pair in zip(first.integers, second.integers, strict=True):
        integer = _as_expression(pair, first, second)
        if integer is None:
            return f"an integer depends on the input: it was {pair[0]} and {pair[1]}"
        integers.append(integer)
    return Program(
        first.rows if first.rows == second.rows else None,
        first.width if first.width == second.width else None,
        _compiled(first, integers),
    )


def _as_expression(pair: tuple[int, int], first: Recording, second: Recording) -> str | None:
    """Return an integer of both recordings as an expression; None where it is none of those that may differ."""
    if pair[0] == pair[1]:
        return str(pair[0])
    both = first, second
    known = {
        "rows": tuple(each.rows for each in both),
        "width": tuple(each.width for each in both),
        "(rows * width)": tuple(each.rows * each.width for each in both),
        "length": tuple(each.length for each in both),
        "(length + width)": tuple(each.length + each.width for each in both),
    }
    for expression, values in known.items():
        if values == pair:
            return expression
    for expression in ("(rows * width)", "width", "rows"):  # experts by nodes, for example
        values = known[expression]
        times = pair[0] // values[0]
        if values[0] != values[1] and pair == (times * values[0], times * values[1]):
            return f"({times} * {expression})"
    return None


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _BY_VALUE) and bool(one == other)


def _compiled(recording: Recording, integers: Sequence[str]) -> Run:
    """Write the calls down as a function: a loop over them would cost half a millisecond a pass."""
    lines = ("\n".join(recording.lines) % tuple(integers)).split("\n")
    last = {name: index for index, line in enumerate(lines) for name in re.findall(r"\bv\d+\b", line)}
    done: dict[int, list[str]] = {}
    for name, index in last.items():
        if name != recording.returned:
            done.setdefault(index, []).append(name)
    body = [f"{line}; del {', '.join(done[index])}" if index in done else line for index, line in enumerate(lines)]
    names = [f"c{index}" for index in range(len(recording.constants))]
    head = "def run(rows, width, length, layers, input_ids, positions, columns=None, **masks):"
    masks = sorted({name for line in lines for name in re.findall(r"\bmask_\d+\b", line)})
    body = [*(f"{name} = masks[{name!r}]" for name in masks), *body, f"return {recording.returned}"]
    whole = [f"def make({', '.join(names)}):", f"    {head}", *(f"        {line}" for line in body), "    return run"]
    made: dict[str, Any] = {}
    exec("\n".join(whole), made)  # of names, integers and brackets alone
    run: Run = made["make"](*recording.constants)
    return run


class _Recorder(TorchFunctionMode):
    """Notes each call of torch, and of attention and caches, which are one call each."""

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

    def ended(self, logits: torch.Tensor) -> Recording:
        """Return the recording of a pass that gave these logits."""
        recording = self._recording
        if self._placement.num_asked != self._num_asked:
            recording.fault = recording.fault or "its code asks for the length of the cache"
        recording.returned = self._names.get(id(logits), "")
        if not recording.returned and not recording.fault:
            recording.fault = "its logits come from elsewhere"
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
        if is_one_call(func) and func.__name__ == "update":
            self._cached |= set(map(id, output))

    def _check_reads(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_shaped_by_numbers(name, args):
            raise _CantRecordError(f"a shape depends on numbers ({name})")
        if not is_one_call(func) and any(id(each) in self._masks | self._cached for each in _tensors((args, kwargs))):
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
        """Return the expression for an argument; what is neither tensor nor literal is a constant."""
        if id(value) in self._indices:
            self._recording.integers.append(self._indices[id(value)])
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, torch.Tensor) and id(value) not in self._weights:
            raise _CantRecordError("it reads a tensor that is none of its weights")
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
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []


def _is_shaped_by_numbers(name: str, args: tuple[Any, ...]) -> bool:
    """True where an output's shape depends on the numbers in a tensor."""
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
