"""The special tokens of a tokenizer, which decoded text omits, and the state that changes once tokens are added."""

from typing import Any


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of special tokens by text: those with a role, such as end of text, and those added as special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {token.content: index for index, token in added.items() if token.special}
    names, ids = (getattr(tokenizer, name, ()) for name in ("all_special_tokens", "all_special_ids"))
    return found | dict(zip(names, ids, strict=True))


def state_of_tokenizer(tokenizer: Any | None) -> object:
    """Return what facts about a tokenizer's vocabulary depend on; it differs once tokens are added or made special."""
    if tokenizer is None:
        return None
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return len(tokenizer), dict(added), [*getattr(tokenizer, "all_special_tokens", ())]
