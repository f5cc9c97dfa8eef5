"""New tokens to text, one at a time, each decoded after the tokens before it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Protocol

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MOST_PARTIAL = 3  # tokens, and so replacement characters, of an unfinished character of four bytes
_MOST_CONTEXT = 16  # tokens
_MOST_PENDING = 32  # tokens
_NUM_LEFT = 18  # pending tokens after a cut: 6 replacement characters or more, each of 3 bytes at most
_NUM_EACH = 8  # context sizes tried one by one: two characters of four bytes

Decode = Callable[[list[int]], str]


class TextSource(Protocol):
    """Turns tokens into text.

    Attributes:
        tail: the text after all that ``push`` has returned; later tokens may change it.
    """

    tail: str

    def push(self, token: int) -> str:
        """Add the next token; return the text that is now final."""


class IncrementalText:
    """The text of new tokens, in linear time.

    Tokenizers join tokens by their neighbours: the first one loses its leading space, and a character may take several
    tokens. So pending tokens, whose text isn't final yet, are decoded after a context: the last tokens
    before them that are whole characters. For a Llama tokenizer, after the prompt "once upon":

        context [▁upon], pending [▁a]           "upon a"         " a" is final
        context [▁a], pending [<0xE6>]          "a�"             a byte of a character: it stays pending
        context [▁a], pending [<0xE6> 9D B1]    "a東"            "東" is final

    A replacement character followed by three more is final as well: no character has more than four bytes.

    Args:
        decode: token ids to text, without special tokens where those are skipped.
        prompt: the tokens before the first.

    Attributes:
        prompt_text: the end of the prompt's text, a token or more.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        self._context, self._pending = _split(decode, prompt)
        self._known = self.prompt_text = decode(self._context) if self._context else ""
        self._unfinished = self._pending_text()  # the prompt's last bytes, if they are no character yet
        self._num_final = len(self._unfinished)  # characters of the pending text
        self._last = self._unfinished
        self.tail = ""

    def push(self, token: int) -> str:
        """Add the next token; return the text that is now final."""
        self._pending.append(token)
        text = self._pending_text()
        if text == self._last and not self._decode([token, token]):  # a special token, say: one token may lose a space
            self._pending.pop()
            return ""
        self._last = text
        if not text.startswith(self._unfinished):  # the new tokens have completed it
            self._num_final, self._unfinished = num_common(text, self._unfinished), ""
        fresh = text[self._num_final :]
        if fresh and not fresh.endswith(INCOMPLETE):
            self._close_pending()
            return fresh
        num_final = max(len(fresh.rstrip(INCOMPLETE)), len(fresh) - _MOST_PARTIAL)
        self.tail = fresh[num_final:]
        if num_final:
            self._unfinished = ""
            self._num_final += num_final
        if len(self._pending) > _MOST_PENDING:
            self._drop_oldest(text)
        return fresh[:num_final]

    def _pending_text(self) -> str:
        """The text of the pending tokens after the context."""
        if not self._pending:
            return ""
        whole = self._decode([*self._context, *self._pending])
        if whole.startswith(self._known):
            return whole[len(self._known) :]
        if whole[: len(self._known)].count(INCOMPLETE) > self._known.count(INCOMPLETE):
            # Some tokenizers decode a run of bytes as a whole: a partial character spoils the others.
            return self._decode(self._pending)
        return whole[num_common(whole, self._known) :]

    def _close_pending(self) -> None:
        """All pending tokens are final: make them the context of the next token."""
        known = self._decode(self._pending)
        if known or len(self._context) + len(self._pending) > _MOST_CONTEXT:
            self._context, self._known = self._pending, known
        else:  # a single space may vanish when it is decoded alone
            self._context = [*self._context, *self._pending]
            self._known = self._decode(self._context)
        self._pending, self._unfinished, self._num_final = [], "", 0
        self._last = self.tail = ""

    def _drop_oldest(self, text: str) -> None:
        """Drop the oldest pending tokens, whose text is final; ``text`` is that of all of them."""
        num_open = len(text) - self._num_final
        self._pending = self._pending[-_NUM_LEFT:]
        rest = self._pending_text()
        self._num_final = len(rest) - num_open
        # A cut inside a character adds three replacement characters at most, in front: texts are aligned at their ends.
        if self._num_final < _MOST_PARTIAL or rest[self._num_final :] != text[len(text) - num_open :]:
            self._pending = self._pending[-_MOST_PARTIAL:]  # each is a byte, and a replacement character
            rest, self._num_final = self._pending_text(), 0
        self._last = rest


def num_common(text: str, other: str) -> int:
    """The length of two texts' common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def _split(decode: Decode, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
    """The last tokens of a prompt that are whole characters, and the bytes of an unfinished one after them."""
    for num_left_out in range(_MOST_PARTIAL + 1):
        end = len(prompt) - num_left_out
        for size in _sizes(end):
            text = decode(list(prompt[end - size : end]))
            if text and INCOMPLETE not in text:
                return list(prompt[end - size : end]), list(prompt[end:])
            if text and size >= _NUM_EACH:  # without any text so far, these are special tokens
                break
    return list(prompt[-_NUM_EACH:-_MOST_PARTIAL]), list(prompt[-_MOST_PARTIAL:])


def _sizes(most: int) -> Iterator[int]:
    """Each size up to eight tokens, then doubled sizes, up to ``most``."""
    size = 1
    while size < most:
        yield size
        size += 1 if size < _NUM_EACH else size
    if most > 0:
        yield most
