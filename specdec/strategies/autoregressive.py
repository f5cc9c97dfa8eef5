"""Plain decoding through the same loop: the baseline of everything."""

from specdec.strategies.base import Drafter, Proposer, Request
from specdec.tree import Budget, DraftTree


class AutoregressiveProposer(Proposer):
    """Proposes nothing: each step feeds the root alone and emits one token."""

    def start(self, request: Request) -> Drafter:
        return _RootAlone(request)


class _RootAlone(Drafter):
    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree(self.request.root)
