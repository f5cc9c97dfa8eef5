"""The contract of sources: what may follow, asked path by path.

A source is a drafter that answers one question: *given some tokens after the committed ones, what may come next?* So
one tree can be grown from the answers of several (``merged.py``), and any source alone is a strategy.

Laws:
- ``root`` is the state after the committed tokens, ``follow`` the state one token further. States are never changed:
  each is asked about several tokens.
- ``candidates`` are distinct tokens, each with the rate of its kind. A source may name anything: rates find out.
- Memory is bounded, and each source says by what.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from specdec.strategies.base import Drafter, Feedback, Proposer, Request
from specdec.strategies.merging.acceptance_rates import Rate
from specdec.strategies.merging.growth import Growth
from specdec.tree import Budget, DraftTree

State = Any  # a source's own; None where it knows of nothing that may follow
Candidate = tuple[int, Rate]


class SourceProposer(Proposer):
    """The options of a source that drafts alone; in a merge, the merge's own count."""

    learns_across_requests: ClassVar[bool] = True

    num_nodes: int = Field(default=10, ge=1, description="nodes of a draft at most")
    min_chance: float = Field(default=0.05, ge=0.0, le=1.0, description="chance below which nothing is drafted")


class Source(Drafter):
    """A drafter that can be asked what may follow any tokens."""

    def __init__(self, request: Request, limits: SourceProposer | None = None) -> None:
        super().__init__(request)
        self._limits = limits
        self._growth: Growth | None = None

    @abstractmethod
    def root(self) -> State:
        """Return the state after the committed tokens."""

    @abstractmethod
    def follow(self, state: State, token: int) -> State:
        """The state one token further."""

    @abstractmethod
    def candidates(self, state: State) -> Sequence[Candidate]:
        """The tokens that may come next, each with the rate of its kind."""

    def receive(self, feedback: Feedback) -> None:
        """Take the signals that the source declared, of whatever tree was verified."""

    def propose(self, budget: Budget) -> DraftTree:
        assert self._limits is not None, "a source that drafts alone was given its limits"
        growth = self._growth = Growth([self], self.request, budget, least_chance=self._limits.min_chance)
        most = min(self._limits.num_nodes, budget.num_nodes)
        while len(growth) <= most and growth.next_chance:
            growth.take()
        return growth.tree(len(growth))

    def observe(self, feedback: Feedback) -> None:
        if self._growth is not None:
            self._growth.learn(feedback.tokens)
        self.receive(feedback)
