"""Texts of single tokens, as they stand behind another token: by itself a token may lose its space."""

from functools import lru_cache
from typing import Any

_MOST_KEPT = 1 << 14


class TokenTexts:
    """A tokenizer's single tokens as text, special ones included; for one thread."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before = list(tokenizer("a", add_special_tokens=False)["input_ids"][-1:])
        self._known = self._decode(self._before)
        self.of = lru_cache(_MOST_KEPT)(self._of)

    def _of(self, token: int) -> str:
        """The text of one token."""
        return self._decode([*self._before, token])[len(self._known) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))
