"""The default strategy: one draft tree from all sources that need no training, sized by measured costs.

A head that was trained for this very model on this machine is one more source.
"""

from datetime import date
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from specdec.errors import ModelError, SpecdecError, in_one_line
from specdec.heads.local_heads import head_of
from specdec.strategies.base import Engine, Proposer
from specdec.strategies.eagle3 import Eagle3Proposer
from specdec.strategies.host import Host
from specdec.strategies.merging.merged import MergedProposer
from specdec.strategies.signals import Hidden, Signal
from specdec.strategies.sources.grammar import GrammarProposer
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer


class AutoProposer(Proposer):
    """Drafts from the text's suffixes, the target's recycled predictions and a constraint's forced text, in one tree.

    The draft sizer decides in each step how many nodes are worth their cost, which may be none.

    If `specdec train head` has made a head for this model, it drafts too, in passes that are worth their time. Results
    have a note that names the head, or that says why it isn't used.
    """

    learns_across_requests: ClassVar[bool] = True

    loss: float = Field(
        default=0.01, ge=0.0, lt=1.0, description="fraction of plain decoding's time that drafts may lose"
    )
    clock: bool = Field(default=True, description="correct the costs measured at load by the time that steps take")
    head: bool = Field(
        default=True, description="draft with the head that `specdec train head` made for this model, if there is one"
    )

    def merged(self, head: Path | None = None) -> MergedProposer:
        """Return the merge that this strategy is short for.

        Args:
            head: folder of an EAGLE-3 head.
        """
        sources: list[Proposer] = [SuffixProposer(), TokenRecyclingProposer(), GrammarProposer()]
        if head is not None:
            sources.append(Eagle3Proposer(head=head))
        return MergedProposer(proposers=sources, loss=self.loss, clock=self.clock)

    def wants(self) -> frozenset[Signal]:
        return self.merged().wants()

    def bind(self, host: Host) -> Engine:
        try:
            folder = head_of(host.model) if self.head else None
            if folder is not None:
                return self._bind_with_head(host, folder)
        except Exception as error:  # whatever a damaged folder or the target's engine raises
            reason = str(error) if isinstance(error, SpecdecError) else in_one_line(error)
            engine = self.merged().bind(host)
            engine.notes = (f"drafted without a trained head: {reason}",)
            return engine
        return self.merged().bind(host)

    def _bind_with_head(self, host: Host, folder: Path) -> Engine:
        """Bind the merge with a head.

        Raises:
            ModelError: the head or the target is unsuitable, with the reason.
        """
        if not (host.is_keyed and self.clock):
            raise ModelError(
                f"auto uses the one in {folder} only where it measures whether that saves time, which it does with "
                "clock=true and under acceptance rules whose text doesn't depend on the drafts"
            )
        engine = self.merged(folder).bind(host)
        try:
            host.expect_hidden({each for _, what in engine.wants() if isinstance(what, Hidden) for each in what.layers})
        except BaseException:
            engine.close()
            raise
        trained = date.fromtimestamp((folder / "config.json").stat().st_mtime)
        engine.notes = (f"drafted with the head trained for this model on {trained}: {folder}",)
        return engine
