"""Switching a model's attention for a pass, and a test whether its code allows that.

The configuration isn't reliable: some modelling code doesn't call transformers' ``AttentionInterface`` and accepts any
name for its own attention. So one token is run with another attention, and its calls are recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
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


class _WatchedCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped here
    """An ordinary cache that records each write in ``events``."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._events.append("written")
        written: tuple[torch.Tensor, torch.Tensor] = super().update(*args, **kwargs)
        return written


def why_not_switchable(model: PreTrainedModel) -> str:
    """Return why some layer's attention can't be switched, or ""; runs the model once for one token."""
    events: list[str] = []

    def watched(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """Return the token's value for each head of a group: a single token attends only to itself."""
        events.append("attended")
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous(), None

    fault = _forward(model, watched, _WatchedCache(events))
    # Layers that share another layer's keys attend without writing any.
    followers = [after for event, after in pairwise([*events, ""]) if event == "written"]
    if "attended" not in events or any(after != "attended" for after in followers):
        return "its attention can't be switched, as its code doesn't use transformers' AttentionInterface"
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
