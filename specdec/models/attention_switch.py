"""Switching a model's attention for a pass, and a test whether its code allows that.

The configuration isn't reliable: some modelling code doesn't call transformers' ``AttentionInterface`` and accepts any
name for its own attention. So one token is run with another attention, which each layer that writes keys has to call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specdec.errors import in_one_line
from specdec.models.architecture import cache_argument
from specdec.models.gradients import runs_in_inference_mode, without_gradients
from specdec.models.notes import remembered

_NAME = "specdec_watched"


@contextmanager
def switched(config: Any, name: str) -> Iterator[None]:
    """Temporarily set the attention of a text configuration by name; it is restored after an error as well."""
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before


def why_fixed(model: PreTrainedModel) -> str:
    """Return why another attention can't replace the model's own, or ""; tested once per model."""
    return remembered(model, "attention switch", lambda: why_not_switchable(model))


def why_not_switchable(model: PreTrainedModel) -> str:
    """Return why some layer's attention can't be switched, or ""; runs the model once for one token."""
    attended, biased, cache = set[int | None](), list[bool](), DynamicCache()

    def watched(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """Return the token's value for each head of a group: a single token attends only to itself.

        Attention to an encoder's states, which are more than one, gets any of their values.
        """
        if value.shape[2] == query.shape[2]:
            attended.add(getattr(module, "layer_idx", None))
            biased.extend([True] * (kwargs.get("position_bias") is not None))
        own = value[:, :, : query.shape[2]]
        return own.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous(), None

    fault = _forward(model, watched, cache)
    # Layers that share another layer's keys attend without writing any.
    written = {number for number, layer in enumerate(cache.layers) if layer.is_initialized}
    if not attended or written - attended:
        return "its attention can't be switched, as its code doesn't use transformers' AttentionInterface"
    if biased:
        return "its attention can't be switched, as it adds a bias by position"
    return f"its attention can't be switched: with another one, its forward raised {fault}" if fault else ""


def _forward(model: PreTrainedModel, attention: Any, cache: DynamicCache) -> str:
    """Run one token under another attention; return the error that it raised, or "". The model is left unchanged."""
    config, is_inference = model.config.get_text_config(), runs_in_inference_mode(model)
    name = f"{_NAME}_{id(attention)}"  # other models may be tried in other threads
    ALL_ATTENTION_FUNCTIONS[name] = attention
    try:
        with switched(config, name), without_gradients(is_inference):
            ids = torch.ones(1, 1, dtype=torch.long, device=model.device)
            model(ids, use_cache=True, **{cache_argument(model): cache})
    except Exception as error:  # third-party modelling code
        return in_one_line(error)
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
    return ""
