"""Suffix decoding: draft what followed earlier occurrences of the longest possible suffix of the text.

Oliaro et al. 2024, "SuffixDecoding", arXiv 2411.04975: a suffix tree with counts. Here a candidate's probability is the
acceptance rate measured for its match length and rank, not the ratio of the counts.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import Field

from specdec.strategies.auto.acceptance_rates import AcceptanceRate
from specdec.strategies.auto.source import Candidate, Source, SourceProposer, State
from specdec.strategies.base import Engine
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.signals import Answers, Signal
from specdec.strategies.sources.trie import (
    COUNT,
    NO_TOKEN,
    NUM_RANKED,
    RANKED,
    SHORTER,
    TOP,
    Match,
    SuffixTrie,
)
from specdec.tree import ROOT, Budget, DraftTree

_MAX_CANDIDATES = 3  # candidates
_LONGEST, _SHARES = 8, 4  # longer matches share a bucket; buckets of a follower's share of the occurrences


class SuffixProposer(SourceProposer):
    """Drafts what followed earlier occurrences of the last tokens in the request's own text.

    Takes some microseconds per node. Memory: about 100 bytes per token of the request, and some hundreds of bytes more
    for each earlier occurrence of the suffixes that end at the token.

    >>> from specdec.testing import first_drafts
    >>> first_drafts(SuffixProposer(num_nodes=2), prompt=[6, 7, 8, 6, 9, 4, 6])
    [DraftTree(tokens=[6, 9, 7], parents=[-1, 0, 0])]

    6 was followed by 9 the last time, and by 7 before.
    """

    instead: ClassVar[Mapping[str, str]] = {
        "num_remembered": "`token_recycling` learns from earlier answers; to draft from files, add `datastore:path=…`"
    }

    depth: int = Field(default=16, ge=1, description="longest suffix to look up, in tokens")

    def bind(self, host: Host) -> Engine:
        # Under other rules, shared rates would change the text of later requests.
        return SuffixEngine(self, is_chain=not host.takes_trees) if host.is_keyed else super().bind(host)

    def start(self, request: Request) -> Source:
        return SuffixEngine(self).start(request)


class SuffixEngine(Engine):
    """The acceptance rates of all requests."""

    def __init__(self, config: SuffixProposer, is_chain: bool = False) -> None:
        self.config, self.is_chain = config, is_chain
        self.forget()

    def forget(self) -> None:
        self.rates = SuffixRates()

    def start(self, request: Request) -> Source:
        return _ChainSource(request, self) if self.is_chain else _SuffixSource(request, self)


class SuffixRates:
    """The acceptance rates of a text's continuations, in lists that are read by numbers: no bucket is hashed.

    Attributes:
        of_only: by match length, of the token after the only occurrence.
        of_ranked: by match length, rank and share of the occurrences, of ranked followers.
    """

    def __init__(self) -> None:
        self.of_only = [AcceptanceRate(_prior(length), "suffix") for length in range(_LONGEST + 1)]
        self.of_ranked = [
            [[AcceptanceRate(_prior(length) * worth, "suffix") for worth in _WORTH_BY_SHARE] for _ in range(NUM_RANKED)]
            for length in range(_LONGEST + 1)
        ]

    def candidates(self, trie: SuffixTrie, match: Match) -> Mapping[int, AcceptanceRate]:
        """Return what followed a match: after its only occurrence, and after its n-grams, up to enough candidates."""
        candidates, only = dict[int, AcceptanceRate](), trie.next_at(match)
        if only != NO_TOKEN:
            candidates[only] = self.of_only[min(match[0], _LONGEST)]
        node, records, num_before = match[2], trie.records, 0
        while node != TOP and len(candidates) < _MAX_CANDIDATES:
            count = records[node + COUNT]
            if count != num_before:  # else it occurs at the same places as the one before
                num_before, length, place = count, records[node], node + RANKED
                for of_share in self.of_ranked[length if length < _LONGEST else _LONGEST]:
                    token = records[place]
                    if token == NO_TOKEN:
                        break
                    if token not in candidates:
                        candidates[token] = of_share[_SHARES * records[place + NUM_RANKED] // count]
                    place += 1
            node = records[node + SHORTER]
        return candidates

    def most_likely(self, trie: SuffixTrie, match: Match) -> Candidate | None:
        """Return what followed a match's longest suffix: its only occurrence, or most of its occurrences.

        None if nothing did.
        """
        length, _, node = match
        if length and (only := trie.next_at(match)) != NO_TOKEN:
            return only, self.of_only[length if length < _LONGEST else _LONGEST]
        records = trie.records
        if node == TOP or (token := records[node + RANKED]) == NO_TOKEN:
            return None
        length, share = records[node], _SHARES * records[node + RANKED + NUM_RANKED] // records[node + COUNT]
        return token, self.of_ranked[length if length < _LONGEST else _LONGEST][0][share]


class _SuffixSource(Source):
    """Searches the request's own text."""

    def __init__(self, request: Request, engine: SuffixEngine) -> None:
        super().__init__(request, engine.config, engine.is_chain)
        self._trie, self._rates = SuffixTrie(engine.config.depth), engine.rates

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        self._trie.extend(self.request.tokens[len(self._trie) : num_tokens])

    def root(self) -> State:
        self._trie.extend(self.request.tokens[len(self._trie) :])
        return self._trie.end

    def follow(self, state: State, token: int) -> State:
        return self._trie.follow(state, token)

    def candidates(self, state: State) -> Iterable[Candidate]:
        return self._rates.candidates(self._trie, state).items()


class _ChainSource(_SuffixSource):
    """Drafts chains if it drafts alone, for models without tree drafts: the follower of the longest match at each node.

    Branches and their order aren't needed, so a node takes less than half the time that ``Growth`` takes.
    """

    def __init__(self, request: Request, engine: SuffixEngine) -> None:
        super().__init__(request, engine)
        self._chain: list[Candidate] = []  # of the last draft, with the candidate that was too improbable, if any

    def propose(self, budget: Budget) -> DraftTree:
        self._growth, self._chain = None, []
        if self.request.constraint() is not None:
            return super().propose(budget)
        limits, trie, most_likely = self._limits, self._trie, self._rates.most_likely
        assert limits is not None, "a source that drafts alone has limits"
        least, stops = limits.min_probability, self.request.eos_token_ids
        most = min(limits.num_nodes, budget.num_nodes, budget.depth, budget.num_tokens - 1)
        match, tokens, probs, probability = self.root(), list[int](), list[float](), 1.0
        while len(tokens) < most:
            if tokens:
                match = trie.follow(match, tokens[-1])
            if (candidate := most_likely(trie, match)) is None:
                break
            self._chain.append(candidate)
            token, rate = candidate
            probability *= rate.value
            if probability <= least:
                break
            tokens.append(token)
            probs.append(rate.value)
            if token in stops:
                break
        tree = DraftTree(self.request.root)
        nodes = tree.add_chain(ROOT, tokens)
        tree.probs, tree.proposed_by = dict(zip(nodes, probs, strict=True)), dict.fromkeys(nodes, ("suffix",))
        return tree

    def observe(self, feedback: Feedback) -> None:
        super().observe(feedback)
        for (candidate, rate), token in zip(self._chain, feedback.tokens, strict=False):
            rate.update(candidate == token)
            if candidate != token:
                break


# Measured on SmolLM2-135M-Instruct's greedy answers to 40 chat prompts: how often the most frequent follower was right
# by match length, if it had at least half of the occurrences; and the factor for a smaller share.
_RIGHT_BY_LENGTH = 0.29, 0.48, 0.62, 0.66, 0.80, 0.80, 0.80, 0.93
_WORTH_BY_SHARE = 0.15, 0.35, 1.0, 1.0, 1.0


def _prior(length: int) -> float:
    return _RIGHT_BY_LENGTH[max(0, length - 1)]
