"""Prompt lookup: draft what followed an earlier occurrence of the last tokens.

Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023, "Inference with Reference", arXiv 2304.04487.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from specdec.strategies.base import Drafter, Proposer, Tunable
from specdec.strategies.request import Request
from specdec.tree import ROOT, Budget, DraftTree

# Enough to find distinct continuations; bounds a step's work, whatever the length of the text.
_MOST_MATCHES_READ = 64


class PromptLookupProposer(Proposer):
    """Drafts what followed an earlier occurrence of the last tokens in the same text, the longest match first.

    >>> from specdec.testing import first_drafts
    >>> first_drafts(PromptLookupProposer(num_tokens=2, num_matches=2), prompt=[6, 7, 8, 6, 9, 4, 6])
    [DraftTree(tokens=[6, 9, 4, 7, 8], parents=[-1, 0, 1, 0, 3])]

    6 was followed by 9, 4 the last time, and by 7, 8 before.
    """

    tunable: ClassVar[Tunable] = {
        "max_ngram": (1, 2, 3, 4, 5),
        "num_tokens": (1, 2, 3, 5, 10, 20),
        "num_matches": (1, 2, 4),
    }

    max_ngram: int = Field(default=3, ge=1, description="longest n-gram of last tokens to look up")
    min_ngram: int = Field(default=1, ge=1, description="shortest n-gram of last tokens to look up")
    num_tokens: int = Field(default=10, ge=1, description="tokens proposed per match")
    num_matches: int = Field(default=1, ge=1, description="matches merged into one tree")
    prefer: Literal["recent", "first"] = Field(
        default="recent", description="which of equally long matches comes first"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram={self.min_ngram} is above max_ngram={self.max_ngram}")
        return self

    def start(self, request: Request) -> Drafter:
        return _PromptLookupDrafter(request, self)


class _PromptLookupDrafter(Drafter):
    def __init__(self, request: Request, config: PromptLookupProposer) -> None:
        super().__init__(request)
        self._config = config
        self._index = PromptIndex()

    def propose(self, budget: Budget) -> DraftTree:
        self._index.extend(self.request.tokens[len(self._index) :])
        tree = DraftTree(self.request.root)
        length = min(self._config.num_tokens, budget.depth, budget.num_nodes, budget.num_tokens - 1)
        num_branches = 0
        for end in self._matches():
            num_nodes = len(tree)
            if num_branches == self._config.num_matches or num_nodes + length > budget.num_nodes + 1 or length < 1:
                break
            tree.add_chain(ROOT, self.request.until_eos(self._continuation(end, length)))
            num_branches += len(tree) > num_nodes
        return tree

    def _matches(self) -> Iterator[int]:
        """Yield the positions after earlier occurrences of the last tokens, those of the longest n-gram first."""
        matches, seen = self._index.matches(self._config.max_ngram), set[int]()
        is_recent, shortest = self._config.prefer == "recent", self._config.min_ngram - 1
        for ends in reversed(matches[shortest:]):
            nearest = ends[: -_MOST_MATCHES_READ - 1 : -1] if is_recent else ends[:_MOST_MATCHES_READ]
            for end in nearest:
                if end not in seen:
                    seen.add(end)
                    yield end

    def _continuation(self, end: int, length: int) -> list[int]:
        """Return ``length`` tokens of the text from ``end`` on; a continuation that reaches the text's end repeats."""
        return list(islice(cycle(self.request.tokens[end : end + length]), length))


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
    """A growing text, and the earlier occurrences of its last tokens.

    Occurrences of an n-gram are sorted by the token before them when the n-gram is first looked up, and later only the
    new ones. So a text of thousands of tokens is indexed in a fraction of a millisecond, and none is read twice.
    """

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
