"""Texts and bytes of single tokens, decoded after another token because a token alone may lose its leading space."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

from specdec.decoding.text.incremental_text import INCOMPLETE

_MOST_KEPT = 1 << 14
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """A tokenizer's single tokens as text, including special ones; used by one thread."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before = list(tokenizer("a", add_special_tokens=False)["input_ids"][-1:])
        self._known = self._decode(self._before)
        self.of = lru_cache(_MOST_KEPT)(self._of)
        self.bytes_of = lru_cache(_MOST_KEPT)(self._bytes_of)

    def _of(self, token: int) -> str:
        """Return the text of one token."""
        return self._decode([*self._before, token])[len(self._known) :]

    def _bytes_of(self, token: int) -> bytes | None:
        """Return the token's UTF-8 bytes; None for a part of a character in an unknown spelling of the vocabulary."""
        text = self.of(token)
        if INCOMPLETE not in text:
            return text.encode("utf-8", "replace")
        spelled = str(self._tokenizer.convert_ids_to_tokens(token))
        return next((coded for coded in _readings(spelled) if coded.decode("utf-8", "replace") == text), None)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))


def _readings(spelled: str) -> Iterator[bytes]:
    """Yield the bytes that a vocabulary's entry may represent: one byte, a letter per byte, or its own text."""
    if single := _BYTE.fullmatch(spelled):
        yield bytes.fromhex(single[1])
    letters = _byte_letters()
    if all(letter in letters for letter in spelled):
        yield bytes(letters[letter] for letter in spelled)
    yield spelled.encode("utf-8", "replace")


def _byte_letters() -> dict[str, int]:
    """Return the letters by which GPT-2's byte-level BPE spells bytes: printable bytes as is, others from 256 on."""
    printable = [*chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))]
    others = [byte for byte in range(256) if byte not in {*printable}]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
