"""A strategy's tree as a source: what follows a node of it are that node's candidates."""

from collections.abc import Hashable, Sequence

from specdec.strategies.base import Request
from specdec.strategies.merging.acceptance_rates import Rates
from specdec.strategies.merging.source import Candidate, Source
from specdec.tree import ROOT, DraftTree

_DEEPEST, _MOST_RANK = 12, 4  # deeper nodes and later children are of one kind


class TreeSource(Source):
    """The candidates of a tree that a strategy gave, with a rate for each depth and rank."""

    def __init__(self, request: Request, tree: DraftTree, rates: Rates) -> None:
        super().__init__(request)
        self._tree, self._rates = tree, rates

    def root(self) -> int:
        return ROOT

    def follow(self, state: int, token: int) -> int | None:
        return self._tree.child(state, token)

    def candidates(self, state: int) -> Sequence[Candidate]:
        tree, depth = self._tree, min(self._tree.depths[state], _DEEPEST)
        children = dict.fromkeys(draw.child for draw in tree.draws.get(state, ()))
        return [(tree.tokens[child], self._rates[depth, min(rank, _MOST_RANK)]) for rank, child in enumerate(children)]

    @staticmethod
    def prior(kind: Hashable) -> float:
        """The first guess at a rate."""
        assert isinstance(kind, tuple), "kinds are (depth, rank)"
        return float(0.4 / (1 + kind[1]))
