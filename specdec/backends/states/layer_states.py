"""States of recurrent and convolutional layers at some length of a row's text, and the cache layers that pass them on.

A state summarises all tokens so far, so a rejected token can't be removed from it: a pass reads a copy, and the cache
decides which of the states before and after the pass to keep. A convolution's state is its last inputs. A pass records
its inputs, so the state after any of its tokens can be cut out. A recurrent state is known after the last token only,
unless the layer's scan leaves those after each token in memory (``after_each``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from specdec.backends.base import KVBlock
from specdec.backends.cache import RaggedLayer
from specdec.backends.placement import Placement


@dataclass(frozen=True, slots=True)
class State:
    """One state of a layer, for one row.

    Attributes:
        inputs: of the convolution, ``(1, channels, tokens)``, the last token's last; None if there is none.
        num_inputs: the number of inputs that the next pass reads.
        recurrent: the recurrent state, ``(1, …)``; None if there is none.
        each: the recurrent states before the pass and after each of its tokens, ``(1, 1 + tokens, …)``; None if only
            the last is known.
    """

    inputs: torch.Tensor | None = None
    num_inputs: int = 0
    recurrent: torch.Tensor | None = None
    each: torch.Tensor | None = None

    @property
    def is_cuttable(self) -> bool:
        """True if the state after any of the pass's tokens is known."""
        return self.recurrent is None or self.each is not None

    def without(self, num_tokens: int) -> "State":
        """Return the state without the last ``num_tokens`` tokens, with as many inputs as the next pass reads.

        The tensors are views of no larger ones.
        """
        recurrent = self.recurrent if self.each is None else self.each[:, -1 - num_tokens]
        # Some scans return the last of the states of all their chunks.
        if recurrent is not None and recurrent.untyped_storage().nbytes() > recurrent.nbytes:
            recurrent = recurrent.clone()
        if self.inputs is None:
            return State(recurrent=recurrent)
        inputs = self.inputs[..., : self.inputs.shape[-1] - num_tokens][..., -self.num_inputs :]
        missing = self.num_inputs - inputs.shape[-1]
        inputs = torch.nn.functional.pad(inputs, (missing, 0)) if missing > 0 else inputs.clone()
        return State(inputs, self.num_inputs, recurrent)

    @classmethod
    def joined(cls, states: Sequence["State"]) -> "State":
        """Return a copy of the states of several rows, which have the same shapes; empty without any."""
        inputs = [state.inputs for state in states if state.inputs is not None]
        recurrent = [state.recurrent for state in states if state.recurrent is not None]
        return cls(torch.cat(inputs) if inputs else None, recurrent=torch.cat(recurrent) if recurrent else None)

    def of_row(self, row: int, num_padding: int) -> "State":
        """Return one row's part of the states of several, without the inputs of ``num_padding`` tokens at the end."""
        inputs, recurrent, each = self.inputs, self.recurrent, self.each
        if inputs is not None:
            inputs = inputs[row : row + 1, ..., : inputs.shape[-1] - num_padding]
        if each is not None:
            each = each[row : row + 1, : each.shape[1] - num_padding]
            return State(inputs, self.num_inputs, each[:, -1], each)
        return State(inputs, self.num_inputs, None if recurrent is None else recurrent[row : row + 1])

    @property
    def num_bytes(self) -> int:
        """Bytes of both tensors."""
        return sum(part.nbytes for part in (self.inputs, self.recurrent) if part is not None)


def after_each(last: torch.Tensor | None, before: torch.Tensor | None, num_tokens: int) -> torch.Tensor | None:
    """Return the states before a pass and after each of its tokens, ``(rows, 1 + tokens, …)``.

    Mamba-2's scan in transformers computes the states at all borders of its chunks in one tensor and returns a view of
    the last. With one token per chunk that tensor has every state.

    Args:
        last: the state after the pass, ``(rows, …)``.
        before: the state that it started from, None for zeros; the tensor must begin with this one.
        num_tokens: of each row.

    Returns:
        None if ``last`` is no such view.
    """
    if last is None or not num_tokens:
        return None
    is_last_of_all = last.untyped_storage().nbytes() == (1 + num_tokens) * last.nbytes
    if not is_last_of_all or last.storage_offset() % num_tokens:
        return None
    size, stride = [len(last), 1 + num_tokens, *last.shape[1:]], last.storage_offset() // num_tokens
    each = last.as_strided(size, [last.stride(0), stride, *last.stride()[1:]], 0)
    first = each[:, 0]
    return each if torch.equal(first, torch.zeros_like(first) if before is None else before) else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The states of all layers after the first ``length`` tokens of a row.

    Attributes:
        begin: the length before the pass that computed the states.
        layers: by layer with states, each of its states.
    """

    length: int
    begin: int
    layers: tuple[tuple[State, ...], ...]

    def at(self, length: int) -> "Snapshot | None":
        """Return the states at the end of the pass, or at ``length`` if that is earlier; None if they are unknown."""
        dropped = max(0, self.length - length)
        states = [state for layer in self.layers for state in layer]
        is_cuttable = length > self.begin and all(state.is_cuttable for state in states)
        if dropped and not is_cuttable:
            return None
        layers = tuple(tuple(state.without(dropped) for state in layer) for layer in self.layers)
        return Snapshot(self.length - dropped, self.begin, layers)

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        return sum(state.num_bytes for layer in self.layers for state in layer)


@dataclass(frozen=True, slots=True)
class StateBlock(KVBlock):
    """Copied keys and values, with the tokens and the checkpoints among them.

    Checkpoints are shared, not copied: no pass changes one.

    Attributes:
        num_lasting: the first tokens whose keys and values are also those of a longer prompt. Fewer than all if the
            model limits the time steps of prompts alone, and the others were generated.
    """

    tokens: tuple[int, ...] = ()
    checkpoints: tuple[Snapshot, ...] = ()
    num_lasting: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts) + sum(each.num_bytes for each in self.checkpoints)

    @property
    def is_resumable(self) -> bool:
        return bool(self.checkpoints)

    @property
    def is_final(self) -> bool:
        return self.is_resumable and self.num_lasting == len(self.tokens)

    def improved(self, other: KVBlock) -> KVBlock:
        assert isinstance(other, StateBlock)
        longer = max(self, other, key=lambda each: each.num_lasting)
        return replace(longer, checkpoints=self.checkpoints or other.checkpoints)


class StateLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """The states of one layer during a pass; it has no keys and values."""

    is_initialized = False
    slot_bytes = 0
    keys: Any = None
    values: Any = None

    def __init__(self, num_states: int) -> None:
        super().__init__(num_states)
        self.record_past = True  # has modelling code pass on all inputs of a convolution
        self._before: list[torch.Tensor | None] = [None] * num_states
        self._num_tokens = 0

    def enter(self, rows: Sequence[Sequence[State]], num_tokens: int = 0) -> None:
        """Set the states that the next pass starts from.

        Args:
            rows: each row's states; none at the beginning of a text.
            num_tokens: tokens of each row if the scan has a chunk for each, so its states can be found; else 0.
        """
        self._num_tokens = num_tokens
        for index in range(self.number_of_states):
            # A copy, since some code updates states in place: kernels the recurrent one, Kimi-Linear the convolution's.
            state = State.joined([states[index] for states in rows])
            self.conv_states[index], self.recurrent_states[index] = state.inputs, state.recurrent
            self.is_conv_states_initialized[index] = state.inputs is not None
            self.is_recurrent_states_initialized[index] = state.recurrent is not None
            self.has_previous_state[index] = bool(rows)
            self._before[index] = self.recurrent_states[index]

    def leave(self) -> tuple[State, ...]:
        """Return the states of all rows after the pass, and hold none of them any longer."""
        states = tuple(
            State(
                self.conv_states[index],
                self.conv_kernel_size[index] or 0,
                self.recurrent_states[index],
                after_each(self.recurrent_states[index], self._before[index], self._num_tokens),
            )
            for index in range(self.number_of_states)
        )
        self.enter(())
        return states

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **others: Any
    ) -> torch.Tensor:
        """Append a pass's inputs, ``(rows, channels, tokens)``, to the convolution's earlier ones; return all."""
        if self.conv_kernel_size[state_idx] is None:
            self.conv_kernel_size[state_idx] = conv_kernel_size or conv_states.shape[-1]
        before = self.conv_states[state_idx]
        if before is not None:
            conv_states = torch.cat([before, conv_states], -1)
        self.conv_states[state_idx] = conv_states
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        return conv_states

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **others: Any) -> torch.Tensor:
        """Replace the recurrent state by the one after the pass."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: states are set when they are first updated."""


class RaggedStateLayer(RaggedLayer, StateLayer):
    """Keys and values as well as states, for layers in which attention and a recurrence run side by side."""

    def __init__(self, placement: Placement, num_states: int) -> None:
        RaggedLayer.__init__(self, placement)
        StateLayer.__init__(self, num_states)
