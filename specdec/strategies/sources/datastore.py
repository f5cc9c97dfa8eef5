"""Retrieval from a datastore: what followed the longest run of tokens that ends here, anywhere in a corpus.

He et al. 2023, "REST: Retrieval-Based Speculative Decoding", arXiv 2311.08252. Their suffix array on disk, here with a
candidate's acceptance rate, by the length of the match and the share of the occurrences, in place of a draft from the
longest match alone. ``specdec index`` makes the file.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path

from pydantic import Field

from specdec.errors import ModelError, RequestError
from specdec.strategies.base import Engine, Host, Request
from specdec.strategies.merging.acceptance_rates import AcceptanceRate, AcceptanceRates
from specdec.strategies.merging.source import Candidate, Source, SourceProposer
from specdec.strategies.sources.index.lookup import Index, Match

_MAX_CANDIDATES, _MOST_RUNS = 6, 3  # runs: of those that are searched for candidates
_LONGEST, _MOST_RANK, _SHARES = 8, 3, 4  # longer runs and later ranks share a bucket; classes of a share
_OFTEN = 8  # occurrences from which on a share means something


class DatastoreProposer(SourceProposer):
    """Continue as a corpus does, from an index that ``specdec index`` has made of it.

    Costs some ten microseconds per node. Memory: the file is mapped, and some megabytes of it are held at a time.
    """

    path: Path = Field(
        default=Path("datastore.index"), description="an index that `specdec index` made with the model's tokenizer"
    )
    depth: int = Field(default=16, ge=1, le=32, description="longest run of tokens that is looked for")

    def bind(self, host: Host) -> Engine:
        index = Index(self.path.expanduser(), self.depth)
        try:
            remedy = "make it anew with `specdec index … --model` and this model"
            index.header.tokenizer.check(host.tokenizer, f"the index {self.path}", remedy)
            if index.header.num_ids > host.vocab_size:
                raise ModelError(
                    f"the index {self.path} holds ids up to {index.header.num_ids - 1} and the model's vocabulary is "
                    f"{host.vocab_size}: {remedy}"
                )
        except BaseException:
            index.close()
            raise
        return DatastoreEngine(self, index, host.is_keyed)


class DatastoreEngine(Engine):
    """The open index, and the acceptance rates of all requests where the text doesn't depend on what is drafted."""

    def __init__(self, config: DatastoreProposer, index: Index, is_keyed: bool) -> None:
        self.config, self.index, self._is_keyed = config, index, is_keyed
        self.forget()

    def forget(self) -> None:
        self.acceptance_rates = AcceptanceRates("datastore", _prior)

    def start(self, request: Request) -> Source:
        if not self._is_keyed:
            self.forget()
        return _DatastoreSource(request, self)

    def close(self) -> None:
        self.index.close()


class _DatastoreSource(Source):
    def __init__(self, request: Request, engine: DatastoreEngine) -> None:
        super().__init__(request, engine.config)
        self._index, self._acceptance_rates, self._depth = engine.index, engine.acceptance_rates, engine.config.depth
        self._match, self._num_read = Index.start, 0

    def root(self) -> Match:
        tokens = self.request.tokens
        if len(tokens) - self._num_read > self._depth:
            self._match, self._num_read = Index.start, len(tokens) - self._depth
        for token in tokens[self._num_read :]:
            self._match = self.follow(self._match, token)
        self._num_read = len(tokens)
        return self._match

    def follow(self, state: Match, token: int) -> Match:
        try:
            return self._index.follow(state, token)
        except IndexError:
            raise self._damaged() from None

    def candidates(self, state: Match) -> Sequence[Candidate]:
        candidates = dict[int, AcceptanceRate]()
        try:
            for nth, found in enumerate(self._index.followers(state)):
                if nth == _MOST_RUNS or len(candidates) >= _MAX_CANDIDATES:
                    break
                length, is_often = min(found.length, _LONGEST), found.num_occurrences >= _OFTEN
                for rank, (token, count) in enumerate(found.ranked[:_MAX_CANDIDATES]):
                    if token not in candidates:
                        share = _SHARES * count // found.num_seen if found.num_occurrences > 1 else _SHARES + 1
                        candidates[token] = self._acceptance_rates[length, is_often, min(rank, _MOST_RANK), share]
        except IndexError:
            raise self._damaged() from None
        if candidates and max(candidates) >= self.request.vocab_size:
            raise self._damaged()
        return list(candidates.items())

    def _damaged(self) -> RequestError:
        return RequestError(f"the index {self._index.path} is damaged: make it anew with `specdec index`")


# Acceptance rates to begin with: those of the suffix source, somewhat lower since a corpus is another's text.
_RIGHT_BY_LENGTH = 0.2, 0.35, 0.45, 0.5, 0.6, 0.65, 0.7, 0.8
_WORTH_BY_SHARE = 0.15, 0.35, 0.7, 0.9, 1.0, 0.8  # the last: of one occurrence


def _prior(bucket: Hashable) -> float:
    assert isinstance(bucket, tuple), "buckets are (length, is often, rank, share)"
    return _RIGHT_BY_LENGTH[bucket[0] - 1] * _WORTH_BY_SHARE[bucket[3]]
