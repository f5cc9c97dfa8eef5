"""The text of a request while it is decoded: whole characters, cut where a stop string starts."""

from collections.abc import Sequence
from typing import Any, Self

from specdec.decoding.text.incremental_text import INCOMPLETE, Decode, IncrementalText, TextSource, num_common
from specdec.settings import Settings

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


class TextDecoder:
    """The text that a request's new tokens add to the prompt's text; tokens are pushed one at a time.

    Args:
        stop: strings that cut the text where they start.
        prompt: the tokens before the first.
        skip_special_tokens: False for special tokens as text, such as the markers of an answer's parts.
        hidden_token_ids: further tokens that the text omits.

    Attributes:
        offsets: of each token, the character at which its text starts; all tokens of one character have its offset.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: tuple[str, ...] = (),
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        hidden_token_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer, self._prompt, self._stop = tokenizer, prompt, stop
        self._skips, self._hidden = skip_special_tokens, frozenset(hidden_token_ids)
        self._source: TextSource | None = None  # made with the first token, as a tokenizer may fail
        self._taken = list[str]()
        self._waiting = ""  # final text that wasn't taken
        self._num_chars = 0  # of final text
        self._num_recent = max(map(len, stop), default=1) - 1
        self._recent = ""  # the end of the final text, where a stop string may have begun
        self._has_ended = False
        self._fault: Exception | None = None  # the tokenizer's
        self.offsets: list[int] = []

    @classmethod
    def of(cls, tokenizer: Any, settings: Settings, prompt: Sequence[int]) -> Self:
        """Return the decoder of a request with these settings."""
        return cls(
            tokenizer,
            settings.stop,
            tuple(prompt),
            skip_special_tokens=settings.skip_special_tokens,
            hidden_token_ids=settings.hidden_token_ids,
        )

    def push(self, token: int) -> bool:
        """Add a token; return True if a stop string is now complete."""
        try:
            return self._push(token)
        except Exception as error:  # a third party's code
            self._fault = error
            raise

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of all tokens."""
        for token in tokens:
            self.push(token)
        self.finish()
        return self.text

    @property
    def text(self) -> str:
        """All final text, cut where a stop string starts."""
        return "".join([*self._taken, self._waiting])

    def take(self) -> str:
        """The final text since the last call: no later token can change or cut it."""
        held_back = 0 if self._has_ended else max(map(self._overlap, self._stop), default=0)
        end = len(self._waiting) - held_back
        taken, self._waiting = self._waiting[:end], self._waiting[end:]
        self._taken.append(taken)
        return taken

    def finish(self) -> str:
        """The rest of the text, including an incomplete last character; called after the last token.

        Raises:
            Exception: the tokenizer's own error, if it has failed.
        """
        if self._fault is not None:
            raise self._fault
        if not self._has_ended and self._source is not None:
            self._waiting += self._source.tail
        self._has_ended = True
        return self.take()

    def _push(self, token: int) -> bool:
        if self._source is None:
            self._source = _source(self._tokenizer, self._prompt, self._skips)
        before = self._source.tail
        final = "" if token in self._hidden else self._source.push(token)
        fresh = final + self._source.tail
        self.offsets.append(self._num_chars + _start(before, fresh))
        if self._stop:
            seen = self._recent + fresh.rstrip(INCOMPLETE)
            starts = [start for stop in self._stop if (start := seen.find(stop)) >= 0]
            if starts:
                self._cut(seen, min(starts))
                return True
            self._recent = (self._recent + final)[-self._num_recent :] if self._num_recent else ""
        self._waiting += final
        self._num_chars += len(final)
        return False

    def _cut(self, seen: str, start: int) -> None:
        """End the text at ``start`` in ``seen``, which is the end of the text."""
        num_known = len(self._recent)
        if start >= num_known:
            self._waiting += seen[num_known:start]
        else:  # the stop string began in text that was held back
            self._waiting = self._waiting[: len(self._waiting) - (num_known - start)]
        self._has_ended = True

    def _overlap(self, stop: str) -> int:
        """Return the number of characters at the end of the text that begin the stop string."""
        last = self._recent[-1:]
        n = stop.rfind(last, 0, len(stop) - 1) + 1 if last else 0  # what begins the stop string ends in this character
        while n and not self._recent.endswith(stop[:n]):
            n = stop.rfind(last, 0, n - 1) + 1
        return n


def _source(tokenizer: Any, prompt: Sequence[int], skips: bool) -> TextSource:
    raw = _decoding(tokenizer, skips)
    try:
        source = IncrementalText(raw, prompt)
    except Exception:  # a third party's code, and ids that it may not know
        source = IncrementalText(raw, ())
    return CleanedText(tokenizer, source, source.prompt_text) if cleans_up(tokenizer) else source


def _decoding(tokenizer: Any, skips: bool) -> Decode:
    """The tokenizer's ``decode`` without clean-up, which needs the whole text."""
    options: dict[str, Any] = {"skip_special_tokens": skips}
    if getattr(tokenizer, "clean_up_tokenization_spaces", None) is not None:
        options["clean_up_tokenization_spaces"] = False
    return lambda ids: str(tokenizer.decode(ids, **options))


def _start(before: str, fresh: str) -> int:
    """The character of ``fresh`` at which the last token's text starts; ``before`` is the text without the token."""
    same = num_common(before, fresh) if before else 0
    # Replacement characters at the end may be parts of one character, which starts at the first of them.
    return len(fresh[:same].rstrip(INCOMPLETE)) if fresh.endswith(INCOMPLETE) else same
