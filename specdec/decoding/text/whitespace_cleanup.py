"""Tokenizers that remove spaces from the decoded text, such as those before a full stop."""

from typing import Any

from specdec.decoding.text.incremental_text import TextSource, num_common

_REACH = 8  # characters; the longest stretch that the replacements can change is " n ' t"
_LONGEST, _NUM_LEFT = 256, 64  # characters of raw text before it is cut, and after


def cleans_up(tokenizer: Any) -> bool:
    """Return True if the tokenizer's ``decode`` removes spaces by default."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_bpe = type(getattr(backend, "model", None)).__name__ == "BPE"  # transformers leaves these as they are
    return not is_bpe or bool(
        getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    )


class CleanedText:
    """A source's text after the tokenizer's ``clean_up_tokenization``, which replaces a few characters at a time.

    Args:
        source: of the raw text.
        before: the end of the prompt's raw text.
    """

    def __init__(self, tokenizer: Any, source: TextSource, before: str) -> None:
        self._clean, self._source = tokenizer.clean_up_tokenization, source
        self._raw = before
        self._before: str | None = self._clean(before)  # until text after it is final
        self._num_final = 0  # characters of the cleaned text
        self.tail = ""

    def push(self, token: int) -> str:
        """Add the next token; return the text that is now final."""
        self._raw += self._source.push(token)
        text = self._clean(self._raw + self._source.tail)
        if self._before is not None:
            self._num_final = num_common(self._before, text)
        start = self._num_final
        end = max(start, len(self._clean(self._raw)) - _REACH)
        if end > start:
            self._before, self._num_final = None, end
        self.tail = text[end:]
        if self._before is None and len(self._raw) > _LONGEST:
            self._raw = self._raw[-_NUM_LEFT:]
            self._num_final = len(self._clean(self._raw)) - _REACH
        return str(text[start:end])
