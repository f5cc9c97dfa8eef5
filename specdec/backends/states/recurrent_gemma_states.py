"""The states of RecurrentGemma's recurrent blocks, which hold them outside of the cache during a pass."""

from collections.abc import Sequence
from typing import Any

import torch

from specdec.backends.states.layer_states import State, StateLayer


class RecurrentGemmaStates(StateLayer):
    """The states of a recurrent block of RecurrentGemma, which holds them itself during a pass.

    The caller holds the model's lock from ``enter`` to ``leave``.
    """

    def __init__(self, block: Any) -> None:
        super().__init__(1)
        self._block = block

    def enter(self, rows: Sequence[Sequence[State]], num_tokens: int = 0) -> None:
        state = State.joined([states[0] for states in rows])
        self._block.conv1d_state, self._block.rg_lru.recurrent_states = state.inputs, state.recurrent

    def leave(self) -> tuple[State, ...]:
        inputs: torch.Tensor | None = self._block.conv1d_state
        num_inputs = 0 if inputs is None else inputs.shape[-1]  # none if the layer wasn't run
        state = State(inputs, num_inputs, self._block.rg_lru.recurrent_states)
        self.enter(())
        return (state,)
