"""Runs a model's passes from recordings once these are verified, and by the model's own forward until then."""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from specdec.backends.cache import RaggedLayer
from specdec.backends.inputs import Inputs, Outputs
from specdec.backends.recorded.program import Program, is_telling, joined
from specdec.backends.recorded.recording import Recording, record
from specdec.errors import in_one_line
from specdec.models.structure import are_hooked, are_same, facts_of
from specdec.models.weights.layers import is_quantised

# Passes of a kind before it is recorded, which takes as long as about twenty passes: with one row; with several rows,
# where Python takes a smaller share; and with drafts of several rows, which are verified for each number of nodes.
_USES, _USES_OF_SEVERAL, _USES_OF_DRAFTS = 3, 64, 256
_MOST_NODES = 128  # of all rows; in larger passes arithmetic dominates, and recording holds every tensor of a pass
_MOST_BYTES = 2**32  # of weights; in larger models Python's time doesn't matter
_MOST_KINDS = 32
_PERIOD = 8  # of numbers of rows and nodes

Forward = Callable[[], Outputs]


@dataclass(slots=True)
class _Kind:
    """A kind of pass, served by one program.

    Attributes:
        trusted: the numbers of rows, nodes and columns, and the context sizes, at which the program was verified.
    """

    num_uses: int = 0
    first: Recording | None = None
    program: Program | None = None
    fault: str = ""
    trusted: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def trusts(self, circumstances: Mapping[str, int]) -> bool:
        """Return True for sizes between verified ones, if one of these had the same remainder.

        Modelling code that depends on a size does so by thresholds or remainders.
        """
        return all(
            size in self.trusted[name] or (name != "context" and _is_between(self.trusted[name], size))
            for name, size in circumstances.items()
        )


def _is_between(tried: Collection[int], size: int) -> bool:
    is_inside = min(tried, default=size) <= size <= max(tried, default=size)
    return is_inside and size % _PERIOD in {one % _PERIOD for one in tried}


class Replay:
    """The recorded passes of one model.

    The first time that a program runs with a number of rows or nodes, or with a context twice as long, it is compared
    with the model's own forward bit by bit. A program that differs is never used again.

    Attributes:
        is_warm: False while passes like the last one are still warming up: the kind isn't recorded yet, or the program
            was compared with the model's own forward.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._kinds: dict[Hashable, _Kind] = {}
        self._state: list[object] = []
        self._weights: list[torch.Tensor] = []
        self._is_able = False
        self.is_warm = True

    def refresh(self) -> None:
        """Drop all programs if the model's modules or weights were replaced or changed.

        Models with hooks or replaced forwards, and quantised or large models, aren't recorded.
        """
        modules = list(self._model.modules())
        self._weights = [*self._model.parameters(), *self._model.buffers()]
        # Programs refer to weights, and to the kernels of packed ones.
        state = [*modules, *self._weights, *map(type, self._weights), *facts_of(modules)]
        if not are_same(state, self._state):
            self._state = state
            self._kinds.clear()
        # Programs would skip hooks and replaced forwards.
        is_hooked = are_hooked(modules)
        is_small = sum(weight.nbytes for weight in self._weights) <= _MOST_BYTES
        self._is_able = is_small and not is_hooked and not any(map(is_quantised, modules))

    def outputs(
        self, forward: Forward, kind: Hashable, inputs: Inputs, layers: Sequence[RaggedLayer], length: int
    ) -> Outputs:
        """Run a pass; return its logits, ``(rows, columns, vocab)``, and hidden states, and write keys and values.

        Args:
            forward: the model's own pass.
            kind: everything besides the inputs by which passes differ: the attention, the layers with hidden states.
            inputs, layers: what the pass reads, and where it writes.
            length: the longest row's committed tokens.
        """
        rows, width = inputs.input_ids.shape
        self.is_warm = True
        is_prompt = not length  # a text's first pass is its only one of that kind, and of any number of nodes
        if not self._is_able or is_prompt or rows * width > _MOST_NODES:
            return forward()
        known = self._kind_of(kind, inputs)
        self.is_warm = bool(known.fault) or known.num_uses > _USES
        num_before = _USES if rows == 1 else _USES_OF_SEVERAL if width == 1 else _USES_OF_DRAFTS
        if known.fault or known.num_uses <= num_before:
            return forward()
        if known.program is None or not known.program.is_for(rows, width):
            return self._record(forward, known, inputs, layers, length)
        return self._replay(forward, known, inputs, layers, length)

    def _kind_of(self, kind: Hashable, inputs: Inputs) -> _Kind:
        """Return what is known of passes like this one, and count it."""
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.clear()
        known = self._kinds.setdefault((kind, inputs.kind()), _Kind())
        known.num_uses += 1
        return known

    def _replay(
        self, forward: Forward, known: _Kind, inputs: Inputs, layers: Sequence[RaggedLayer], length: int
    ) -> Outputs:
        """Run a program; the model's own pass as well under circumstances in which the two weren't compared."""
        assert known.program is not None
        rows, width = inputs.input_ids.shape
        num_columns = 0 if inputs.columns is None else len(inputs.columns)
        circumstances = {"rows": rows, "nodes": width, "columns": num_columns, "context": length.bit_length()}
        try:
            outputs = known.program(inputs, layers, length)
        except Exception as error:  # third-party code under circumstances that weren't recorded
            known.fault = in_one_line(error)
            return forward()
        if known.trusts(circumstances):
            return outputs
        self.is_warm = False
        own = forward()  # keys and values are written again: the model's own stay
        if all(map(_are_equal, outputs, own)):
            for name, size in circumstances.items():
                known.trusted[name].add(size)
        else:
            known.fault = "a recorded pass returns other logits or hidden states"
        return own

    def _record(
        self, forward: Forward, known: _Kind, inputs: Inputs, layers: Sequence[RaggedLayer], length: int
    ) -> Outputs:
        self.is_warm = False
        rows, width = inputs.input_ids.shape
        if known.first is not None and not is_telling(known.first, rows, width, length):
            return forward()
        modules = list(self._model.modules())
        before = facts_of(modules)
        outputs, recording = record(forward, inputs, layers, self._weights, length)
        if not are_same(facts_of(modules), before):
            recording.fault = recording.fault or "its code keeps state"
        program = recording.fault if known.first is None else joined(known.first, recording)
        known.first = known.first or recording
        if isinstance(program, Program):
            known.program = program
            known.trusted.clear()
        else:
            known.fault = program
        return outputs


def _are_equal(output: torch.Tensor, own: torch.Tensor) -> bool:
    """Return True if all bits are the same; NaN equals NaN."""
    is_alike = (output.shape, output.dtype) == (own.shape, own.dtype)
    return is_alike and torch.allclose(output, own, rtol=0.0, atol=0.0, equal_nan=True)
