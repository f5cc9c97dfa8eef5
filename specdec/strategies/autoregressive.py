"""Plain decoding by the same loop: the baseline that every strategy is compared with."""

from specdec.strategies.base import Drafter, Proposer
from specdec.strategies.request import Request
from specdec.tree import Budget, DraftTree


class AutoregressiveProposer(Proposer):
    """Proposes no tokens: each step forwards the root alone and emits one token.

    >>> from specdec.testing import first_drafts
    >>> first_drafts(AutoregressiveProposer(), prompt=[1, 2, 3])  # the root is the last token of the prompt
    [DraftTree(tokens=[3], parents=[-1])]
    """

    def start(self, request: Request) -> Drafter:
        return _RootAlone(request)


class _RootAlone(Drafter):
    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree(self.request.root)
