"""The special tokens of a tokenizer, which decoded text omits."""

from typing import Any


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of special tokens by text: those with a role, such as end of text, and those added as special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {token.content: index for index, token in added.items() if token.special}
    names, ids = (getattr(tokenizer, name, ()) for name in ("all_special_tokens", "all_special_ids"))
    return found | dict(zip(names, ids, strict=True))
