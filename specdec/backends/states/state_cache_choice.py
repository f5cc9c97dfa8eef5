"""The choice of the cache that a model with states needs, by its family."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.backends.states.layer_states import State, StateLayer
from specdec.backends.states.stateful_cache import StatefulCache
from specdec.backends.wide_passes import WidePasses
from specdec.models.architecture import STATES


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


def state_cache_of(model: PreTrainedModel, num_layers: int, wide: WidePasses) -> StatefulCache:
    """Return an empty cache for a model's first layers, some of which have states."""
    config = model.config.get_text_config()
    kinds, num_states = config.layer_types[:num_layers], getattr(config, "number_of_conv_states", 1)
    if config.model_type == "minimax":
        from specdec.backends.states.minimax_states import MiniMaxStates  # imports transformers' code of the family

        return MiniMaxStates(kinds, num_states, wide)
    blocks = {}
    if config.model_type == "recurrent_gemma":
        layers = model.get_decoder().layers
        blocks = {
            index: RecurrentGemmaStates(layers[index].temporal_block)
            for index, kind in enumerate(kinds)
            if kind in STATES
        }
    return StatefulCache(kinds, num_states, wide, blocks)
