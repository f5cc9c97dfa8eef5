"""Makes one program of two recordings of a pass, or finds why there is none.

The two recordings have different tokens, contexts and, where possible, numbers of rows and nodes. Integers that differ
must be one of these numbers; any other difference means that the Python code depends on the input, and the pass can't
be replayed.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType, MethodWrapperType
from typing import Any

import torch

from specdec.backends.cache import RaggedLayer
from specdec.backends.inputs import Inputs, Outputs
from specdec.backends.recorded.recording import Recording

_BY_VALUE = float, complex, str, torch.device, MethodType, MethodWrapperType
Run = Callable[..., Outputs]


@dataclass(frozen=True, slots=True)
class Program:
    """A pass as a function of its inputs; if ``rows`` or ``width`` is None, any number above one is supported."""

    rows: int | None
    width: int | None
    run: Run

    def is_for(self, rows: int, width: int) -> bool:
        """Return True if the program supports this number of rows and nodes."""
        return self.rows in {None, rows} and self.width in {None, width}

    def __call__(self, inputs: Inputs, layers: Sequence[RaggedLayer], length: int) -> Outputs:
        """Return what the recorded pass does, and write to the cache as the model does."""
        return self.run(*inputs.input_ids.shape, length, layers, **inputs.named())


def is_telling(first: Recording, rows: int, width: int, length: int) -> bool:
    """Return True if a pass of these sizes, compared with a recording, shows which size each integer depends on."""
    pairs = (first.rows, rows), (first.width, width), (first.length, length)
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    return first.length != length and len({*changed}) == len(changed)


def joined(first: Recording, second: Recording) -> Program | str:
    """Return the common program of two recordings with different contexts, or why there is none."""
    if fault := first.fault or second.fault:
        return fault
    if first.lines != second.lines or first.returned != second.returned:
        return "two passes make different calls"
    if not all(map(_is_same, first.constants, second.constants)):
        return "two passes read different objects"
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
    """Return an integer of both recordings as an expression of the sizes, or None if it isn't one."""
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
    """Compile the calls to a function, because a loop over them would take half a millisecond per pass."""
    lines = ("\n".join(recording.lines) % tuple(integers)).split("\n")
    last = {name: index for index, line in enumerate(lines) for name in re.findall(r"\bv\d+\b", line)}
    done: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in recording.returned:
            done.setdefault(index, []).append(name)
    body = [f"{line}; del {', '.join(done[index])}" if index in done else line for index, line in enumerate(lines)]
    names = [f"c{index}" for index in range(len(recording.constants))]
    head = "def run(rows, width, length, layers, input_ids, positions, columns=None, **masks):"
    masks = sorted({name for line in lines for name in re.findall(r"\bmask_\d+\b", line)})
    body = [*(f"{name} = masks[{name!r}]" for name in masks), *body, f"return ({', '.join(recording.returned)},)"]
    whole = [f"def make({', '.join(names)}):", f"    {head}", *(f"        {line}" for line in body), "    return run"]
    made: dict[str, Any] = {}
    exec("\n".join(whole), made)  # of names, integers and brackets alone
    run: Run = made["make"](*recording.constants)
    return run
