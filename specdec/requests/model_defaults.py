"""The defaults that a model's own generation config sets."""

from collections.abc import Mapping
from typing import Any

from specdec.settings import SAME_NAME, with_effect

_ENDS = "min_length", "min_new_tokens", "forced_eos_token_id"
# Tokens that are forbidden or forced, whatever is asked for.
OWN_RULES = (
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "no_repeat_ngram_size", "forced_bos_token_id", *_ENDS
)  # fmt: skip


def own_eos_token_ids(model: Any, vocab_size: int) -> tuple[int, ...]:
    """Return the ends of text that the model's generation config names; as in transformers, nothing else names any."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    eos_token_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    # A configuration class's default end-of-text may not exist in a smaller vocabulary.
    return tuple(token for token in eos_token_ids if token < vocab_size)


def own_rules(model: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model's generation config by which tokens are forbidden or forced.

    Args:
        overrides: the request's own. Its constraint alone decides where the text ends, and it may ask for fewer tokens
            than ``min_new_tokens``.
    """
    config = getattr(model, "generation_config", None)
    found = {name: value for name in OWN_RULES if (value := getattr(config, name, None)) is not None}
    most = overrides.get("max_new_tokens")
    if isinstance(most, int) and found.get("min_new_tokens", 0) > most:
        found["min_new_tokens"] = most
    is_constrained = overrides.get("constraint") is not None
    return {name: value for name, value in found.items() if not (is_constrained and name in _ENDS)}


def ignored_defaults(model: Any) -> tuple[str, ...]:
    """Return notes with the settings of the model's generation config that are ignored; empty if there are none."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return ()
    honoured = "eos_token_id", "decoder_start_token_id", *OWN_RULES
    ignored = {name: f"{name}={value!r}" for name, value in with_effect(config).items() if name not in honoured}
    known = [text for name, text in ignored.items() if name in (*SAME_NAME, "do_sample", "stop_strings")]
    others = [text for text in ignored.values() if text not in known]
    note = f"ignored in the model's generation config: {', '.join(known)}; pass generation_config to apply it"
    unsupported = f"ignored in the model's generation config, and not supported here: {', '.join(others)}"
    return ((note,) if known else ()) + ((unsupported,) if others else ())
