"""Retrieval from a datastore: draft what followed the longest possible suffix of the text in a corpus.

He et al. 2023, "REST: Retrieval-Based Speculative Decoding", arXiv 2311.08252: a suffix array on disk. Here shorter
matches propose candidates too, and a candidate's probability is the acceptance rate measured for its match length and
its share of the occurrences. ``specdec index`` builds the file.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path

from pydantic import Field

from specdec.errors import ModelError, RequestError
from specdec.strategies import AcceptanceRate, AcceptanceRates, Candidate, Engine, Host, Request, Source, SourceProposer
from specdec_datastore.index.lookup import Index, Match

_MAX_CANDIDATES, _MOST_RUNS = 6, 3  # candidates; matched suffixes that are read for them
_LONGEST, _MOST_RANK, _SHARES = 8, 3, 4  # longer matches and later ranks share a bucket; buckets of a follower's share
_OFTEN = 8  # occurrences that make a share reliable


class DatastoreProposer(SourceProposer):
    """Drafts what followed the last tokens in a corpus, by an index that ``specdec index`` has built.

    Takes about ten microseconds per node. Memory: the file is mapped, with some megabytes resident at a time.

    >>> from tempfile import TemporaryDirectory
    >>> from specdec.testing import first_drafts
    >>> from specdec_datastore import build_index
    >>> with TemporaryDirectory() as folder:
    ...     _ = build_index(Path(folder, "index"), [[1, 2, 3, 4], [7, 2, 3, 5]])
    ...     first_drafts(DatastoreProposer(path=Path(folder, "index")), prompt=[0, 1, 2])
    [DraftTree(tokens=[2, 3, 4, 5], parents=[-1, 0, 1, 1])]

    After 1, 2 the corpus has 3, 4; after the shorter suffix 2, 3 it also has 5.
    """

    path: Path = Field(
        default=Path("datastore.index"), description="an index built by `specdec index` with the model's tokenizer"
    )
    depth: int = Field(default=16, ge=1, le=32, description="longest suffix to look up, in tokens")

    def check_files(self) -> None:
        Index(self.path.expanduser(), self.depth).close()

    def bind(self, host: Host) -> Engine:
        index = Index(self.path.expanduser(), self.depth)
        try:
            remedy = "build it again with `specdec index … --model` and this model"
            index.header.tokenizer.check(host.tokenizer, f"the index {self.path}", remedy)
            if index.header.num_ids > host.vocab_size:
                raise ModelError(
                    f"the index {self.path} has ids up to {index.header.num_ids - 1}, but the model's vocabulary has "
                    f"{host.vocab_size}: {remedy}"
                )
        except BaseException:
            index.close()
            raise
        return DatastoreEngine(self, index, host.is_keyed)


class DatastoreEngine(Engine):
    """The open index, and the acceptance rates of all requests, which are shared if drafts can't change the text."""

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
        return RequestError(f"the index {self._index.path} is damaged: build it again with `specdec index`")


# Initial rates, which measurement corrects: those of the suffix source, somewhat lower as the text isn't the model's.
_RIGHT_BY_LENGTH = 0.2, 0.35, 0.45, 0.5, 0.6, 0.65, 0.7, 0.8
_WORTH_BY_SHARE = 0.15, 0.35, 0.7, 0.9, 1.0, 0.8  # the last is for a single occurrence


def _prior(bucket: Hashable) -> float:
    assert isinstance(bucket, tuple), "buckets are (length, is often, rank, share)"
    return _RIGHT_BY_LENGTH[bucket[0] - 1] * _WORTH_BY_SHARE[bucket[3]]
