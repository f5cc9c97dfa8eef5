"""The requests behind a batch's rows: vLLM tells what each row holds, and not whose it is.

Rows change places when requests finish, and a row that is free is given to another request. So a request is known by
its text: the row whose text before this step is what a request had behind the last one is that request's. Two requests
with the same text may be taken for one another, and nothing is lost by that, since all that is known of a request
follows from its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec import Drafter, DraftTree

_TAIL = 8  # last tokens by which texts are told apart at first
_MOST_ABSENT = 64  # steps that a request may be missing, as one that makes room for others is


@dataclass(slots=True, eq=False)
class Text:
    """A request's text, and its drafting.

    Attributes:
        tokens: prompt and emitted tokens; drafters hold it as a live view.
        drafter: None before its first draft, and once it has failed.
        draft: the chain that was proposed behind the text, and is being verified.
    """

    tokens: list[int]
    prompt_length: int
    drafter: Drafter | None = None
    draft: DraftTree | None = None
    last_seen: int = 0
    _array: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def is_text(self, tokens: np.ndarray) -> bool:
        """True where these are the text's tokens, (tokens,)."""
        if len(tokens) != len(self.tokens):
            return False
        known = len(self._array)
        if known < len(tokens):
            self._array = np.concatenate([self._array, self.tokens[known:]])
        return bool(np.array_equal(self._array, tokens))


class Rows:
    """The text of each row, step by step."""

    def __init__(self) -> None:
        self._at: dict[int, Text] = {}  # by row, in the last step
        self._absent: list[Text] = []
        self._step = 0

    def find(
        self, emitted: Sequence[Sequence[int]], tokens: Sequence[np.ndarray]
    ) -> tuple[dict[int, Text], list[Text]]:
        """Find the texts of rows that have emitted tokens in a step.

        Args:
            emitted: by row, the tokens that it has emitted; a row without any is left out.
            tokens: by row, its text, these tokens included.

        Returns:
            The texts by row, as they were before these tokens, and those that are let go: they haven't been seen for a
            while.
        """
        self._step += 1
        before = {row: tokens[row][: len(tokens[row]) - len(new)] for row, new in enumerate(emitted) if new}
        found = {row: self._at[row] for row, text in before.items() if row in self._at and self._at[row].is_text(text)}
        others = dict.fromkeys((*self._at.values(), *self._absent))
        for text in found.values():
            others.pop(text, None)
        by_tail: dict[tuple[int, ...], list[Text]] = {}
        if len(found) < len(before):
            for text in others:
                by_tail.setdefault(_tail(text.tokens), []).append(text)
        for row in before.keys() - found.keys():
            held = before[row]
            alike = (each for each in by_tail.get(_tail(held.tolist()), ()) if each in others and each.is_text(held))
            known = next(alike, None)
            if known is None:
                known = Text(held.tolist(), len(held))
            others.pop(known, None)
            found[row] = known
        for text in found.values():
            text.last_seen = self._step
        self._at = found
        self._absent = [text for text in others if self._step - text.last_seen <= _MOST_ABSENT]
        return found, [text for text in others if text not in self._absent]


def _tail(tokens: Sequence[int]) -> tuple[int, ...]:
    return (len(tokens), *tokens[-_TAIL:])
