"""Jacobi decoding: guess the next n tokens at once and let every forward pass correct all of them.

Santilli et al. 2023, arXiv 2305.10427, Algorithm 1; Song et al. 2021, arXiv 2002.03629.
"""

from typing import ClassVar

from pydantic import Field

from specdec.strategies.base import Drafter, Feedback, Nodes, Proposer, Request, Signal, Tunable, What
from specdec.tree import ROOT, Budget, DraftTree, Role


class JacobiProposer(Proposer):
    """A chain of ``n`` guesses below the root, updated in parallel.

    With ``noise_aware`` a guess is updated to what the target would draw there, keyed noise included, so that at
    temperature above 0 the sampled text is the iteration's fixed point (Wiggers and Hoogeboom 2020, arXiv 2002.09928);
    otherwise to the argmax. At temperature 0 both are the same.
    """

    tunable: ClassVar[Tunable] = {"n": (1, 2, 3, 4, 6, 8, 12, 16)}

    n: int = Field(default=8, ge=1, description="guesses per step")
    noise_aware: bool = Field(default=True, description="update guesses with keyed draws instead of the argmax")

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROBE, What.DRAW if self.noise_aware else What.ARGMAX)})

    def start(self, request: Request) -> Drafter:
        return _JacobiDrafter(request, self)


class _JacobiDrafter(Drafter):
    def __init__(self, request: Request, config: JacobiProposer) -> None:
        super().__init__(request)
        self._n = config.n
        self._guess = request.random_tokens(config.n)  # y_1 … y_n, for the positions behind the root

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        length = min(budget.depth, budget.num_nodes, budget.num_tokens - 1)
        tree.add_chain(ROOT, self._guess[: max(0, length)], Role.CANDIDATE | Role.PROBE)
        return tree

    def observe(self, feedback: Feedback) -> None:
        # Node i of the chain predicts position i + 1; the new root stands where position len(tokens) was.
        num_committed = len(feedback.tokens)
        chain = range(num_committed, len(feedback.tree))
        predictions = feedback.predictions
        guess = [predictions.get(node) for node in chain] + [None] * self._n
        filler = self.request.random_tokens(self._n)
        self._guess = [new if token is None else token for token, new in zip(guess, filler, strict=False)]
