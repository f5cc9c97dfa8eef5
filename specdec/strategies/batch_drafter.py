"""A drafter whose proposals its engine makes."""

from specdec.strategies.base import Drafter, Engine
from specdec.strategies.request import Request
from specdec.tree import Budget, DraftTree


class BatchDrafter(Drafter):
    """A drafter whose engine drafts for all its requests together, in its own ``propose_many``."""

    def __init__(self, request: Request, engine: Engine) -> None:
        super().__init__(request)
        self._write = engine.propose_many

    def propose(self, budget: Budget) -> DraftTree:
        proposal = self._write([self], [budget])[0]
        if isinstance(proposal, Exception):
            raise proposal
        return proposal
