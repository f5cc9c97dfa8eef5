"""Token ids to text while they are being decoded: whole characters only, cut where a stop string starts."""

from typing import Any

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class TextDecoder:
    """The text of one sequence's new tokens, pushed one at a time.

    A piece is decoded together with the piece before it, since tokenizers join tokens (spaces, bytes of a character)
    by their neighbours.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids: list[int] = []
        self._context = 0  # where the piece before the current one starts
        self._read = 0  # ids up to here are in the text
        self._text = ""
        self._num_taken = 0
        self._cut: int | None = None

    def push(self, token: int) -> bool:
        """Take one token; returns whether a stop string is now complete."""
        self._ids.append(token)
        pending = self._pending()
        fresh = pending.rstrip(_INCOMPLETE)
        searched = len(self._text) - max(map(len, self._stop), default=0)
        starts = [(self._text + fresh).find(stop, max(0, searched)) for stop in self._stop]
        self._cut = min((start for start in starts if start >= 0), default=None)
        if self._cut is not None or (fresh and fresh == pending):
            self._text += fresh
            self._context, self._read = self._read, len(self._ids)
        return self._cut is not None

    @property
    def text(self) -> str:
        """All text so far, cut where a stop string starts."""
        return self._text[: self._cut]

    def take(self) -> str:
        """Text that is settled and was not taken before: no later token can change or cut it."""
        settled = len(self._text) if self._cut is None else self._cut
        if self._cut is None:
            settled -= max((self._overlap(stop) for stop in self._stop), default=0)
        taken, self._num_taken = self._text[self._num_taken : settled], max(settled, self._num_taken)
        return taken

    def finish(self) -> str:
        """The rest of the text, an incomplete last character included, when no token will follow."""
        if self._cut is None:
            self._text += self._pending()
            self._context = self._read = len(self._ids)
        end = len(self._text) if self._cut is None else self._cut
        rest, self._num_taken = self._text[self._num_taken : end], end
        return rest

    def _pending(self) -> str:
        """The text of the ids that are not in it yet, incomplete characters included."""
        known = self._decode(self._ids[self._context : self._read])
        return self._decode(self._ids[self._context :])[len(known) :]

    def _overlap(self, stop: str) -> int:
        """Return the number of characters at the end of the text that begin the stop string."""
        last = self._text[-1:]
        n = stop.rfind(last, 0, len(stop) - 1) + 1 if last else 0  # what begins the stop string ends in this character
        while n and not self._text.endswith(stop[:n]):
            n = stop.rfind(last, 0, n - 1) + 1
        return n

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""
