"""The modalities that a transformers model reads besides text, as its class says."""

import inspect
from typing import Any

_MODALITIES = "image", "video", "audio"
TOKEN_TYPES = "token_type_ids", "mm_token_type_ids"


def modalities_of(model: Any) -> frozenset[str]:
    """Return what a model reads besides text: "image", "video" and "audio"."""
    names = getattr(model, "input_modalities", ())
    return frozenset({names} if isinstance(names, str) else names) & frozenset(_MODALITIES)


def types_for_masks(model: Any) -> set[str]:
    """Return the names of the token types by which a model makes the masks of prompts; none for most."""
    make = getattr(model, "create_masks_for_generate", None)
    return set() if make is None else set(TOKEN_TYPES) & inspect.signature(make).parameters.keys()


def masks_by_types(model: Any) -> bool:
    """Return True for a model like PaliGemma: its own mask isn't causal, and token types say what a prompt sees."""
    is_both_ways = getattr(model.config.get_text_config(), "use_bidirectional_attention", None) is True
    return is_both_ways and bool(types_for_masks(model))
