"""An index of a growing text: where its last tokens occurred before.

Occurrences of an n-gram are sorted by the token before them when the n-gram is first looked up, and later only the new
ones. So a text of thousands of tokens is indexed in a fraction of a millisecond, and no occurrence is read twice.
"""

from collections import defaultdict
from collections.abc import Sequence


class _Longer:
    """The n-grams that extend an n-gram to the left by one token.

    Attributes:
        ends: by that token, the position after each occurrence, ascending.
        num_sorted: how many occurrences of the shorter n-gram were read.
    """

    __slots__ = ("ends", "num_sorted")

    def __init__(self) -> None:
        self.ends = defaultdict[int, list[int]](list)
        self.num_sorted = 0


class PromptIndex:
    """A growing text, and the earlier occurrences of its last tokens."""

    def __init__(self) -> None:
        self._text: list[int] = []
        self._longer = defaultdict[tuple[int, ...], _Longer](_Longer)  # by n-gram; those that were looked up

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        self._text += tokens

    def matches(self, max_ngram: int) -> list[Sequence[int]]:
        """Return the earlier occurrences of the last token, of the last two tokens, and so on, as far as there are any.

        An occurrence is the position after it; positions ascend, and the text's own end is left out.

        Args:
            max_ngram: longest n-gram of last tokens to look up.
        """
        text, found = self._text, list[Sequence[int]]()
        ends: Sequence[int] = range(1, len(text))
        for n in range(1, min(max_ngram, len(text) - 1) + 1):
            longer = self._longer[tuple(text[len(text) + 1 - n :])]
            by_token = longer.ends
            for end in ends[longer.num_sorted :]:
                if end >= n:
                    by_token[text[end - n]].append(end)
            longer.num_sorted = len(ends)
            if text[-n] not in by_token:
                break
            ends = by_token[text[-n]]
            found.append(ends)
        return found
