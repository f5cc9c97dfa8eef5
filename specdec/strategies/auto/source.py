"""The contract of sources: candidates for the next token after any path.

A source is a drafter that answers one question: *given some tokens after the committed ones, what may come next?* So
one tree can be grown from several sources (``merged.py``), and any source alone is a strategy.

Laws:
- ``root`` is the state after the committed tokens, ``follow`` the state one token further. States are never changed:
  each is followed by several tokens.
- ``candidates`` are distinct tokens, each with the acceptance rate of its bucket. A source may propose any token.
- Memory is bounded, and each source documents the bound.
"""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from pydantic import Field

from specdec.strategies.auto.acceptance_rates import AcceptanceRate, AcceptanceRates
from specdec.strategies.auto.growth import CandidateSource, Growth
from specdec.strategies.base import Drafter, Proposer
from specdec.strategies.feedback import Feedback
from specdec.strategies.request import Request
from specdec.tree import ROOT, Budget, DraftTree

State = Any  # a source's own; None where nothing is known to follow
Candidate = tuple[int, AcceptanceRate]


class SourceProposer(Proposer):
    """The options of a source that drafts alone; a merge has its own."""

    learns_across_requests: ClassVar[bool] = True

    num_nodes: int = Field(default=10, ge=1, description="nodes of a draft at most")
    min_probability: float = Field(default=0.05, ge=0.0, le=1.0, description="least probability of a drafted node")


class Source(Drafter, CandidateSource):
    """A drafter with candidates after any path.

    Attributes:
        is_certain: the candidates are what a request's constraint forces, so they are drafted also in steps that skip
            other sources.
    """

    is_certain: ClassVar[bool] = False

    def __init__(self, request: Request, limits: SourceProposer | None = None, is_chain: bool = False) -> None:
        """Begin a request.

        Args:
            limits: of its drafts, for a source that drafts alone.
            is_chain: these drafts are chains, for models without tree drafts.
        """
        super().__init__(request)
        self._limits, self._is_chain = limits, is_chain
        self._growth: Growth | None = None

    def propose(self, budget: Budget) -> DraftTree:
        assert self._limits is not None, "a source that drafts alone has limits"
        budget = Budget(min(self._limits.num_nodes, budget.num_nodes), budget.depth, budget.num_tokens)
        least = self._limits.min_probability
        growth = Growth({0: self}, self.request, budget, min_probability=least, is_chain=self._is_chain)
        self._growth = growth
        growth.take_all()
        return growth.tree(len(growth))

    def observe(self, feedback: Feedback) -> None:
        if self._growth is not None:
            self._growth.learn(feedback.tokens)


_DEEPEST, _MOST_RANK = 12, 4  # deeper nodes and later children share a bucket


class TreeSource(CandidateSource):
    """The candidates of a strategy's tree, with an acceptance rate for each depth and rank."""

    def __init__(self, tree: DraftTree, rates: AcceptanceRates) -> None:
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
