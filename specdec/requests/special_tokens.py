"""The special tokens of a tokenizer, which decoding leaves out."""

from typing import Any


def special_tokens(tokenizer: Any) -> frozenset[str]:
    """Return those with a role, such as the end of text, and any other that was added as special, such as a marker."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return frozenset(getattr(tokenizer, "all_special_tokens", ())) | {each.content for each in added if each.special}
