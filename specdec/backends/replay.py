"""A model's passes by their recordings, once these are known to be right; by its own forward until then."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import is_not

import torch
from torch.nn.modules import module as modules_of_torch

from specdec.backends.cache import RaggedLayer
from specdec.backends.recording import Inputs, Program, Recording, joined, record

_USES = 3  # passes of a kind before it is recorded: rare kinds never pay for it
_WIDEST = 128  # nodes per row; beyond, arithmetic is all that counts

_SIMPLE = bool, int, float, complex, str, type(None), torch.dtype, torch.device
_OF_TORCH = set(vars(torch.nn.Module()))  # parameters, buffers, modules and hooks are looked at apart
_OF_TORCH -= {"training"}

Forward = Callable[[], torch.Tensor]


@dataclass(slots=True)
class _Kind:
    """Passes that one program may serve.

    ``trusted``: the numbers of nodes, and the orders of magnitude of contexts, at which the program has been right.
    """

    num_uses: int = 0
    first: Recording | None = None
    program: Program | None = None
    fault: str = ""
    trusted: set[tuple[str, int]] = field(default_factory=set)


class Replay:
    """The recorded passes of one model.

    A program that is used for the first time with a number of nodes, or behind a context twice as long, is held against
    the model's own forward, bit by bit. One that differs is never used again.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._parts: list[object] = []
        self._attributes: list[object] = []
        self._weights: list[torch.Tensor] = []
        self._is_able = False

    def refresh(self, model: torch.nn.Module) -> None:
        """Forget everything if the model's modules or weights are other objects than they were, or behave otherwise.

        A model with hooks, or with a forward of its own in place of its class's, isn't recorded.
        """
        modules = list(model.modules())
        weights = [*model.parameters(), *model.buffers()]
        parts = [*modules[1:], *weights]  # without the model itself, which would never be freed
        attributes = attributes_of(modules)
        is_same = len(parts) == len(self._parts) and not any(starmap(is_not, zip(parts, self._parts, strict=True)))
        if not is_same or attributes != self._attributes:
            self._parts, self._weights, self._attributes = parts, weights, attributes
            self._kinds.clear()
        # Others rely on hooks' being called, and on forwards of their own.
        self._is_able = not (_are_all_hooked() or any(map(_is_hooked, modules)))

    def logits(
        self, forward: Forward, attention: Hashable, inputs: Inputs, layers: Sequence[RaggedLayer], length: int
    ) -> torch.Tensor:
        """Return a pass's logits, (rows, columns, vocab), with the keys and values written.

        Args:
            forward: the model's own pass.
            attention: everything that passes differ by, besides their inputs.
            inputs, layers: what the pass reads, and where it writes.
            length: the longest row's committed tokens.
        """
        width = inputs.input_ids.shape[1]
        if not self._is_able or width > _WIDEST or torch.is_autocast_enabled(inputs.input_ids.device.type):
            return forward()
        known = self._kinds.setdefault((attention, inputs.kind()), _Kind())
        known.num_uses += 1
        if known.fault or known.num_uses <= _USES:
            return forward()
        if known.program is None or known.program.width not in {None, width}:
            return self._record(forward, known, inputs, layers, length)
        circumstances = {("nodes", width), ("context", length.bit_length())}
        if circumstances <= known.trusted:
            return known.program(inputs, layers, length)
        tried = known.program(inputs, layers, length)
        logits = forward()  # keys and values are written again: the model's own stay
        if torch.allclose(tried, logits, rtol=0.0, atol=0.0, equal_nan=True):
            known.trusted |= circumstances
        else:
            known.fault = "a recorded pass gives other logits"
        return logits

    def _record(
        self, forward: Forward, known: _Kind, inputs: Inputs, layers: Sequence[RaggedLayer], length: int
    ) -> torch.Tensor:
        if known.first is not None and known.first.length == length:
            return forward()  # nothing would tell which integers follow the context
        modules = [part for part in self._parts if isinstance(part, torch.nn.Module)]
        before = attributes_of(modules)
        logits, recording = record(forward, inputs, layers, self._weights, length)
        if attributes_of(modules) != before:
            recording.fault = recording.fault or "its code keeps state"
        program = recording.fault if known.first is None else joined(known.first, recording)
        known.first = known.first or recording
        if isinstance(program, Program):
            known.program = program
        else:
            known.fault = program
        return logits


def attributes_of(modules: Iterable[torch.nn.Module]) -> list[object]:
    """Return what modules' Python may depend on: adapters that are switched on and off, for example.

    Numbers, names and containers of them by value, other objects by identity.
    """
    return [(name, _fact(value)) for module in modules for name, value in vars(module).items() if name not in _OF_TORCH]


def _fact(value: object) -> object:
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, dict):
        return [(key, _fact(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [_fact(each) for each in value]
    return id(value)


def _is_hooked(module: torch.nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or module._compiled_call_impl is not None
    )


def _are_all_hooked() -> bool:
    return bool(modules_of_torch._global_forward_hooks or modules_of_torch._global_forward_pre_hooks)
