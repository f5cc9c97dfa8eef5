"""The choice of what surrounds a target's text: prompts, its chat template, or nothing."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from specdec.errors import ModelError, RequestError, plural
from specdec.heads.training.script import Script
from specdec.models.architecture import name_of
from specdec.requests.turn_ends import ends_of_turn

_FEWEST_TOKENS, _MOST_TOKENS = 2, 512  # of a prompt


def script_for(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]] | None) -> Script:
    """Return what surrounds the model's text: prompts, the chat template's open user turn, or nothing.

    Raises:
        RequestError: without a tokenizer, or if all prompts are too long or too short.
        ModelError: for a model without a token that begins or ends a text.

    Warns:
        UserWarning: if some prompts are left out, and if the chat template is.
    """
    if tokenizer is None:
        raise RequestError("training needs the model's tokenizer, and there is none: pass tokenizer=…")
    ends = _ends(model, tokenizer)
    if prompts is not None:
        return _prompted(prompts, _first(tokenizer, ends), ends)
    if getattr(tokenizer, "chat_template", None):
        with suppress(Exception):  # a template that needs more than a user's message
            script = Script.chat(tokenizer, list(dict.fromkeys((*ends, *ends_of_turn(tokenizer, {})))))
            if script.prefix and script.bridge:
                return script
        warnings.warn(
            "the chat template is left out, as it has no open user turn that the model could continue: the head is "
            "trained on free text; give chats with --prompts (prompts=…)",
            stacklevel=2,
        )
    return Script.continuation(_first(tokenizer, ends), ends)


def _ends(model: Any, tokenizer: Any) -> list[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = tokenizer.eos_token_id if ends is None else ends
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    if not ends:
        raise ModelError(f"{name_of(model)} has no token that ends a text: set its generation_config.eos_token_id")
    return ends


def _first(tokenizer: Any, ends: Sequence[int]) -> int:
    first = getattr(tokenizer, "bos_token_id", None)
    return int(ends[0] if first is None else first)


def _prompted(prompts: Sequence[Sequence[int]], first: int, ends: list[int]) -> Script:
    chosen = [list(prompt) for prompt in prompts if _FEWEST_TOKENS <= len(prompt) <= _MOST_TOKENS]
    allowed = f"{_FEWEST_TOKENS} to {_MOST_TOKENS} tokens"
    if not chosen:
        raise RequestError(f"no prompt has {allowed}: give others, or none")
    if left_out := len(prompts) - len(chosen):
        num_long = sum(len(prompt) > _MOST_TOKENS for prompt in prompts)
        counts = {f"{num_long} of more than {_MOST_TOKENS} tokens": num_long}
        counts[f"{left_out - num_long} of fewer than {_FEWEST_TOKENS} tokens"] = left_out - num_long
        reasons = " and ".join(text for text, count in counts.items() if count)
        warnings.warn(f"{left_out} of {plural(len(prompts), 'prompt')} left out: {reasons}", stacklevel=2)
    shared = _shared([prompt[:-1] for prompt in chosen])
    return Script(shared or [first], [prompt[len(shared) :] for prompt in chosen], None, [], ends)


def _shared(prompts: Sequence[list[int]]) -> list[int]:
    """Return the tokens that all prompts begin with."""
    low, high = min(prompts), max(prompts)
    size = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[:size]
