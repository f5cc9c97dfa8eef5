"""A strategy's tree as a source: the children of a node are its candidates."""

from collections.abc import Hashable, Sequence

from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.source import Candidate, Source
from specdec.strategies.request import Request
from specdec.tree import ROOT, DraftTree

_DEEPEST, _MOST_RANK = 12, 4  # deeper nodes and later children share a bucket


class TreeSource(Source):
    """The candidates of a strategy's tree, with an acceptance rate for each depth and rank."""

    def __init__(self, request: Request, tree: DraftTree, rates: AcceptanceRates) -> None:
        super().__init__(request)
        self._tree, self._acceptance_rates = tree, rates

    def root(self) -> int:
        return ROOT

    def follow(self, state: int, token: int) -> int | None:
        return self._tree.child(state, token)

    def candidates(self, state: int) -> Sequence[Candidate]:
        tree, rates, depth = self._tree, self._acceptance_rates, min(self._tree.depths[state], _DEEPEST)
        children = dict.fromkeys(draw.child for draw in tree.draws.get(state, ()))
        return [(tree.tokens[child], rates[depth, min(rank, _MOST_RANK)]) for rank, child in enumerate(children)]

    @staticmethod
    def prior(bucket: Hashable) -> float:
        """Return the acceptance rate that a bucket begins with."""
        assert isinstance(bucket, tuple), "buckets are (depth, rank)"
        return float(0.4 / (1 + bucket[1]))
