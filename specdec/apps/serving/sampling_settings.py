"""A request's sampling fields as settings of ``Generator.generate``."""

from typing import Any

from specdec.apps.serving.schemas import Sampling
from specdec.settings import LEAST_TEMPERATURE


def settings_of(body: Sampling) -> dict[str, Any]:
    """Return the settings that decide how tokens are drawn, and which penalties apply."""
    temperature = 1.0 if body.temperature is None else body.temperature  # OpenAI's default
    settings: dict[str, Any] = {
        "temperature": temperature,
        "skip_special_tokens": body.skip_special_tokens is not False,
        "logit_bias": dict(body.logit_bias or {}),
        "frequency_penalty": body.frequency_penalty or 0.0,
        "presence_penalty": body.presence_penalty or 0.0,
        "repetition_penalty": body.repetition_penalty or 1.0,
    }
    # What Generator refuses as too low: only the most likely token is left.
    if temperature < LEAST_TEMPERATURE or body.top_p == 0:
        return settings | {"temperature": 0.0}
    if body.top_k is not None and body.top_k > 0:
        settings["top_k"] = body.top_k
    return settings | {"top_p": body.top_p or None, "min_p": body.min_p or None}
