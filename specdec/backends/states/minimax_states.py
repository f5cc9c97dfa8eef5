"""The states of MiniMax's lightning attention, whose code accepts transformers' ``MiniMaxCache`` only."""

import torch
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from specdec.backends.states.layer_states import StateLayer
from specdec.backends.states.stateful_cache import StatefulCache


class MiniMaxStates(StatefulCache, MiniMaxCache):  # type: ignore[misc]  # transformers is untyped here
    """A ``StatefulCache`` under the names by which MiniMax's layers ask for their states."""

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        """Return a layer's state, ``(rows, heads, size, size)``; None at the beginning of a text."""
        layer = self.layers[layer_idx]
        assert isinstance(layer, StateLayer), "attention layers have no state"
        state: torch.Tensor | None = layer.recurrent_states[0]
        return state

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        """Replace a layer's state by the one after the pass."""
        self.layers[layer_idx].update_recurrent_state(linear_cache)

    def __len__(self) -> int:
        return len(self.layers)
