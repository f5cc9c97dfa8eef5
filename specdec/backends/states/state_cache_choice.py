"""The choice of the cache that a model with states needs, by its family."""

from transformers import PreTrainedModel

from specdec.backends.states.recurrent_gemma_states import RecurrentGemmaStates
from specdec.backends.states.stateful_cache import StatefulCache
from specdec.backends.wide_passes import WidePasses
from specdec.models.architecture import STATES


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
