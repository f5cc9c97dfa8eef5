"""The sizes of a head, derived from its target."""

from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.heads.config import Eagle3Config, PEagleConfig

_MOST_LAYERS, _FEWEST_LAYERS, _TARGET_LAYERS_PER_LAYER = 4, 2, 7  # of P-EAGLE heads; four are published
_LEAST_LAYERS = 7  # below that, the layout's default names a layer twice


def eagle3_config(model: PreTrainedModel, draft_vocab_size: int, **overrides: Any) -> Eagle3Config:
    """Return the configuration of a head for a target: one layer of the target's sizes.

    Args:
        model: the target.
        draft_vocab_size: size of the draft vocabulary, at most the target's.
        overrides: fields of ``Eagle3Config`` to set otherwise.
    """
    config, vocab_size = model.config.get_text_config(), model.get_input_embeddings().weight.shape[0]
    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
    derived: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab_size": vocab_size,
        "draft_vocab_size": min(draft_vocab_size, vocab_size),
        "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": getattr(config, "max_position_embeddings", 2048),
        "layer_ids": None if layers >= _LEAST_LAYERS else (1, layers // 2, layers - 1),
    }
    return Eagle3Config(**derived | overrides)


def p_eagle_config(model: PreTrainedModel, vocabulary: torch.Tensor, **overrides: Any) -> PEagleConfig:
    """Return the configuration of a P-EAGLE head for a target.

    The mask token is one that the head doesn't draft, if there is one: its embedding stands for no known token.

    Args:
        model: the target.
        vocabulary: (draft vocab,) the target's id of each draft id, in ascending order.
        overrides: fields of ``PEagleConfig`` to set otherwise.
    """
    derived = eagle3_config(model, len(vocabulary)).model_dump()
    is_drafted = torch.zeros(derived["vocab_size"], dtype=torch.bool)
    is_drafted[vocabulary.cpu()] = True
    derived["mask_token_id"] = int(is_drafted.int().argmin())
    layers = model.config.get_text_config().num_hidden_layers
    derived["num_layers"] = min(_MOST_LAYERS, max(_FEWEST_LAYERS, layers // _TARGET_LAYERS_PER_LAYER))
    return PEagleConfig(**derived | overrides)
