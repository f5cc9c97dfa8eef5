"""The requests of a batch's rows: vLLM reports the text of each row, but not its request.

Rows change places when requests finish, and a free row goes to another request. So a request is identified by its text:
a row is the request's if its text before this step is the request's text after the last one, or begins with it where
vLLM has continued without drafts. Two requests with the same text may be confused. Nothing is lost by that, since all
that is known of a request follows from its text. Where a row has kept its place, length and last tokens are compared in
most steps.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec import Drafter, DraftTree

_MOST_MISSED = 1024  # tokens that a request may have emitted unseen: in a rest, or near vLLM's longest text
_TAIL = 32  # last tokens by which a text is recognised in its own row
_FULL_INTERVAL = 64  # steps between two comparisons of a whole text in its own row
_MOST_ABSENT = 64  # steps for which a request may be missing, such as a preempted one


@dataclass(slots=True, eq=False)
class Text:
    """A request's text, and its drafting.

    Attributes:
        tokens: prompt and emitted tokens; drafters hold it as a live view.
        drafter: None before its first draft, and once it has failed.
        draft: the chain that was proposed after the text, and is being verified.
    """

    tokens: list[int]
    prompt_length: int
    drafter: Drafter | None = None
    draft: DraftTree | None = None
    first_seen: int = 0
    last_seen: int = 0
    _array: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # of tokens, with room for more
    _num_copied: int = 0

    def precedes(self, tokens: np.ndarray, most: int) -> bool:
        """Return True if a row's tokens, ``(tokens,)``, begin with the text and have at most ``most`` more."""
        length = len(self.tokens)
        if not length <= len(tokens) <= length + most:
            return False
        if length > len(self._array):
            self._array = np.concatenate([self._array[: self._num_copied], np.empty(2 * length, np.int32)])
        self._array[self._num_copied : length] = self.tokens[self._num_copied :]
        self._num_copied = length
        return bool((self._array[:length] == tokens[:length]).all())

    def continues_in(self, tokens: np.ndarray, step: int) -> bool:
        """Return True if a row that had this text in the last step has it still, ``tokens`` being the row's text now.

        All tokens are compared in the first step after the prompt, since prompts of one template often have the same
        length and last tokens, and then every ``_FULL_INTERVAL`` steps. In other steps lengths and last tokens are
        compared, so their work doesn't grow with the texts. Until the next full comparison, another request with the
        same length and last tokens would draft from this text, whose earlier part may differ: worse drafts at most.
        """
        if (step - self.first_seen) % _FULL_INTERVAL == 1:
            return self.precedes(tokens, 0)
        return len(self.tokens) == len(tokens) and self.tokens[-_TAIL:] == tokens[-_TAIL:].tolist()


class Rows:
    """The text of each row, step by step."""

    def __init__(self) -> None:
        self._at: dict[int, Text] = {}  # by row, in the last step
        self._absent: list[Text] = []
        self._step = 0

    def find(
        self, emitted: Sequence[Sequence[int]], tokens: Sequence[np.ndarray]
    ) -> tuple[dict[int, Text], list[Text]]:
        """Return the texts of rows that have emitted tokens in a step.

        Args:
            emitted: by row, the tokens that it has emitted; a row without any is left out.
            tokens: by row, its text, these tokens included.

        Returns:
            The texts by row, as they were before these tokens, and those that are let go: they haven't been seen for a
            while.
        """
        self._step += 1
        before = {row: tokens[row][: len(tokens[row]) - len(new)] for row, new in enumerate(emitted) if new}
        found = {
            row: text for row, text in self._at.items() if row in before and text.continues_in(before[row], self._step)
        }
        known_texts = set(found.values())
        others = dict.fromkeys(text for text in (*self._at.values(), *self._absent) if text not in known_texts)
        by_length = defaultdict[int, list[Text]](list)
        for text in others:
            by_length[len(text.tokens)].append(text)
        for most in (0, _MOST_MISSED):
            for row in before.keys() - found.keys():
                likely = others if most else by_length[len(before[row])]
                candidates = (text for text in (self._at.get(row), *likely) if text in others)
                known = next((text for text in candidates if text.precedes(before[row], most)), None)
                if known is not None:
                    del others[known]
                    found[row] = known
        for row in before.keys() - found.keys():
            found[row] = Text(before[row].tolist(), len(before[row]), first_seen=self._step)
        for text in found.values():
            if text.last_seen < self._step - 1:
                text.draft = None  # vLLM drops it when it puts a request back
            text.last_seen = self._step
        self._at = found
        self._absent = [text for text in others if self._step - text.last_seen <= _MOST_ABSENT]
        return found, [text for text in others if text not in self._absent]
