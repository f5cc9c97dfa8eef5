"""The default strategy: one draft tree from all sources that need no training, sized by measured costs."""

from typing import ClassVar

from pydantic import Field

from specdec.strategies.base import Engine, Host, Proposer, Signal
from specdec.strategies.merging.merged import MergedProposer
from specdec.strategies.sources.grammar import GrammarProposer
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer


class AutoProposer(Proposer):
    """Drafts from the text's suffixes, the target's recycled predictions and a constraint's forced text, in one tree.

    The draft sizer decides in each step how many nodes are worth their cost, which may be none.
    """

    learns_across_requests: ClassVar[bool] = True

    loss: float = Field(
        default=0.01, ge=0.0, lt=1.0, description="fraction of plain decoding's time that drafts may lose"
    )
    clock: bool = Field(default=True, description="correct the costs measured at load by the time that steps take")

    def merged(self) -> MergedProposer:
        """Return the merge that this strategy is short for."""
        sources = SuffixProposer(), TokenRecyclingProposer(), GrammarProposer()
        return MergedProposer(proposers=sources, loss=self.loss, clock=self.clock)

    def wants(self) -> frozenset[Signal]:
        return self.merged().wants()

    def bind(self, host: Host) -> Engine:
        return self.merged().bind(host)
