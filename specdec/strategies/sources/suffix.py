"""Suffix decoding: draft what followed earlier occurrences of the longest possible suffix of the text.

Oliaro et al. 2024, "SuffixDecoding", arXiv 2411.04975: a suffix tree with counts. Here a candidate's probability is the
acceptance rate measured for its match length and rank, not the ratio of the counts.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from pydantic import Field

from specdec.strategies.base import Answers, Engine, Host, Request, Signal
from specdec.strategies.merging.acceptance_rates import AcceptanceRate, AcceptanceRates
from specdec.strategies.merging.source import Candidate, Source, SourceProposer
from specdec.strategies.sources.trie import BREAK, NUM_RANKED, TOP, Match, SuffixTrie
from specdec.tree import Budget

_MAX_CANDIDATES = 3  # candidates
_LONGEST, _SHARES = 8, 4  # longer matches share a bucket; buckets of a follower's share of the occurrences


class SuffixProposer(SourceProposer):
    """Drafts what followed earlier occurrences of the last tokens: in the request's own text, and in recent answers.

    Recent answers are searched only if ``num_remembered`` is above 0. Takes some microseconds per node. Memory: about
    100 bytes per token of the request and of ``num_remembered``, and some hundreds of bytes more for each earlier
    occurrence of the suffixes that end at the token.

    >>> from specdec.testing import first_drafts
    >>> first_drafts(SuffixProposer(num_nodes=2), prompt=[6, 7, 8, 6, 9, 4, 6])
    [DraftTree(tokens=[6, 9, 7], parents=[-1, 0, 0])]

    6 was followed by 9 the last time, and by 7 before.
    """

    depth: int = Field(default=16, ge=1, description="longest suffix to look up, in tokens")
    num_remembered: int = Field(default=0, ge=0, description="tokens of earlier answers to retain (0: none)")

    def bind(self, host: Host) -> Engine:
        # Under other rules, remembered answers and rates would change the text of later requests.
        return SuffixEngine(self, is_chain=not host.takes_trees) if host.is_keyed else super().bind(host)

    def start(self, request: Request) -> Source:
        return SuffixEngine(self).start(request)


class SuffixEngine(Engine):
    """The acceptance rates of all requests, and the most recent answers."""

    def __init__(self, config: SuffixProposer, is_chain: bool = False) -> None:
        self.config, self.is_chain = config, is_chain
        self.depth, self._num_remembered = config.depth, config.num_remembered
        self.forget()

    def forget(self) -> None:
        self.acceptance_rates = AcceptanceRates("suffix", _prior)
        self.past: list[SuffixTrie] = []  # earlier answers, the latest first

    def remember(self, answer: Sequence[int]) -> None:
        """Retain an answer; when the newer half of the memory is full, the older half is dropped."""
        if not self._num_remembered:
            return
        if not self.past or len(self.past[0]) + len(answer) > self._num_remembered // 2:
            self.past = [SuffixTrie(self.depth), *self.past[:1]]
        for token in answer[: self._num_remembered // 2]:
            self.past[0].append(token)
        self.past[0].append(BREAK)

    def start(self, request: Request) -> Source:
        return _SuffixSource(request, self)


class _SuffixSource(Source):
    def __init__(self, request: Request, engine: SuffixEngine) -> None:
        super().__init__(request, engine.config, engine.is_chain)
        self._engine, self._acceptance_rates = engine, engine.acceptance_rates
        self._tries = [SuffixTrie(engine.depth), *engine.past]
        self._past = [trie.start for trie in engine.past]
        self._num_read = 0

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        self._append(self.request.tokens[self._num_read : num_tokens])

    def _append(self, tokens: Sequence[int]) -> None:
        own, *past = self._tries
        for token in tokens:
            own.append(token)
            self._past = [trie.follow(match, token) for trie, match in zip(past, self._past, strict=True)]
        self._num_read += len(tokens)

    def root(self) -> list[Match]:
        self._append(self.request.tokens[self._num_read :])
        return [self._tries[0].end, *self._past]

    def follow(self, state: list[Match], token: int) -> list[Match]:
        return [trie.follow(match, token) for trie, match in zip(self._tries, state, strict=True)]

    def candidates(self, state: list[Match]) -> Iterable[Candidate]:
        candidates = dict[int, AcceptanceRate]()
        for index, match in enumerate(state):
            trie, where = self._tries[index], min(index, 1)
            only = trie.next_at(match)
            if only != BREAK and only not in candidates:
                candidates[only] = self._acceptance_rates[where, min(match.length, _LONGEST)]
            self._add(candidates, where, trie, match.node)
        return candidates.items()

    def _add(self, candidates: dict[int, AcceptanceRate], where: int, trie: SuffixTrie, node: int) -> None:
        """Add the followers of an n-gram and of its suffixes, up to the suffix that makes it enough."""
        ranked, shorter, counts, num_before = trie.ranked, trie.shorter, trie.counts, 0
        while node != TOP and len(candidates) < _MAX_CANDIDATES:
            if counts[node] != num_before:  # else it occurs at the same places as the one before
                num_before = counts[node]
                first = node * NUM_RANKED
                for place in range(first, first + NUM_RANKED):
                    token = ranked[place]
                    if token == BREAK:
                        break
                    if token not in candidates:
                        share = _SHARES * trie.ranked_counts[place] // num_before
                        bucket = where, min(trie.lengths[node], _LONGEST), min(place - first, _SHARES), share
                        candidates[token] = self._acceptance_rates[bucket]
            node = shorter[node]

    def stop(self) -> None:
        self._engine.remember(self.request.tokens[self.request.prompt_length :])


# Measured on SmolLM2-135M-Instruct's greedy answers to 40 chat prompts: how often the most frequent follower was right
# by match length, if it had at least half of the occurrences; and the factor for a smaller share.
_RIGHT_BY_LENGTH = 0.29, 0.48, 0.62, 0.66, 0.80, 0.80, 0.80, 0.93
_WORTH_BY_SHARE = 0.15, 0.35, 1.0, 1.0, 1.0


def _prior(bucket: Hashable) -> float:
    assert isinstance(bucket, tuple), "buckets are (where, length) or (where, length, rank, share)"
    return _RIGHT_BY_LENGTH[bucket[1] - 1] * (_WORTH_BY_SHARE[bucket[3]] if len(bucket) > 2 else 1.0)
