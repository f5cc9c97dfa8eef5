"""Jacobi decoding: guess the next n tokens at once, and correct all guesses with every forward pass.

Santilli et al. 2023, arXiv 2305.10427, Algorithm 1; Song et al. 2021, arXiv 2002.03629.
"""

from typing import ClassVar

from pydantic import Field

from specdec.strategies.base import Drafter, Proposer, Tunable
from specdec.strategies.feedback import Feedback
from specdec.strategies.request import Request
from specdec.strategies.signals import Nodes, Signal, What
from specdec.tree import ROOT, Budget, DraftTree, Role


class JacobiProposer(Proposer):
    """Drafts a chain of ``n`` guesses below the root, all updated by each pass.

    With ``noise_aware``, a guess is replaced by the token that the target would draw there with its keyed noise, so at
    a temperature above 0 the sampled text is the fixed point of the iteration (Wiggers and Hoogeboom 2020, arXiv
    2002.09928). Otherwise it is replaced by the argmax. At temperature 0 the two are the same.

    >>> from specdec.testing import first_drafts
    >>> for tree in first_drafts(JacobiProposer(n=3), prompt=[0], num_steps=2):
    ...     print(tree.tokens)  # first guesses come from the prompt, later ones from the model's predictions
    [0, 0, 0, 0]
    [1, 2, 3, 4]
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
        self._guess = request.random_tokens(config.n)  # y_1 … y_n, for the positions after the root

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        length = min(budget.depth, budget.num_nodes, budget.num_tokens - 1)
        tree.add_chain(ROOT, self._guess[: max(0, length)], Role.CANDIDATE | Role.PROBE)
        return tree

    def observe(self, feedback: Feedback) -> None:
        # Node i of the chain predicts position i + 1; the new root is at position len(tokens).
        num_committed = len(feedback.tokens)
        chain = range(num_committed, len(feedback.tree))
        predictions = feedback.predictions
        guess = [predictions.get(node) for node in chain] + [None] * self._n
        filler = self.request.random_tokens(self._n)
        self._guess = [new if token is None else token for token, new in zip(guess, filler, strict=False)]
