"""The default strategy: one draft of all sources that need no training, of the size that pays here."""

from typing import ClassVar

from pydantic import Field

from specdec.strategies.base import Engine, Host, Proposer, Signal
from specdec.strategies.merging.merged import MergedProposer
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer


class AutoProposer(Proposer):
    """The text's own suffixes and the target's recycled predictions, merged under one price."""

    learns_across_requests: ClassVar[bool] = True

    loss: float = Field(default=0.01, ge=0.0, lt=1.0, description="share of plain decoding's time that drafts may lose")
    clock: bool = Field(default=True, description="let the time that steps take correct the costs measured at load")

    def merged(self) -> MergedProposer:
        """The merge that it stands for."""
        return MergedProposer(proposers=(SuffixProposer(), TokenRecyclingProposer()), loss=self.loss, clock=self.clock)

    def wants(self) -> frozenset[Signal]:
        return self.merged().wants()

    def bind(self, host: Host) -> Engine:
        return self.merged().bind(host)
