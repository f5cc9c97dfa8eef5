"""The special tokens of a tokenizer, which text omits."""

from typing import Any


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids, by text, of tokens with a role, such as the end of text, and of tokens added as special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {token.content: index for index, token in added.items() if token.special}
    names, ids = (getattr(tokenizer, name, ()) for name in ("all_special_tokens", "all_special_ids"))
    return found | dict(zip(names, ids, strict=True))
