"""The default strategy: one draft tree from all sources that need no training, sized by measured costs.

What was prepared for this very model on this machine, such as a trained head, is one more source.
"""

from collections.abc import Sequence

from pydantic import Field

from specdec.errors import ModelError, SpecdecError, in_one_line
from specdec.strategies.auto.merged import MergedProposer, MergeOptions
from specdec.strategies.base import Engine, LocalSource, Proposer
from specdec.strategies.host import Host
from specdec.strategies.signals import Hidden, Signal
from specdec.strategies.sources.grammar import GrammarProposer
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.reference import ReferenceProposer
from specdec.strategies.sources.suffix import SuffixProposer


class AutoProposer(MergeOptions):
    """Drafts from the text's suffixes, the target's recycled predictions and a constraint's forced text, in one tree.

    A request's reference, a text that the answer resembles, is one more source.
    The draft sizer decides in each step how many nodes are worth their cost, which may be none.

    If `specdec train head` has made a head for this model, it drafts too, in passes that are worth their time. Results
    have a note that names the head, or that says why it isn't used.
    """

    head: bool = Field(
        default=True, description="draft with the head that `specdec train head` made for this model, if there is one"
    )

    def merged(self, further: Sequence[Proposer] = ()) -> MergedProposer:
        """Return the merge that this strategy is short for, with some further parts."""
        sources = [SuffixProposer(), TokenRecyclingProposer(), GrammarProposer(), ReferenceProposer(), *further]
        return MergedProposer(proposers=sources, num_nodes=self.num_nodes, loss=self.loss, clock=self.clock)

    @property
    def reads_reference(self) -> bool:
        return True

    def wants(self) -> frozenset[Signal]:
        return self.merged().wants()

    def bind(self, host: Host) -> Engine:
        unused = "what was prepared for this model"
        try:
            local: Sequence[LocalSource] = host.local_sources() if self.head else ()
            unused = " and ".join(each.name for each in local) or unused
            if local:
                return self._bind_with(host, local)
        except Exception as error:  # whatever a damaged folder or the target's engine raises
            reason = str(error) if isinstance(error, SpecdecError) else in_one_line(error)
            engine = self.merged().bind(host)
            engine.notes = (f"drafted without {unused}: {reason}",)
            return engine
        return self.merged().bind(host)

    def _bind_with(self, host: Host, local: Sequence[LocalSource]) -> Engine:
        """Bind the merge with what was prepared for the model.

        Raises:
            ModelError: it or the target is unsuitable, with the reason.
        """
        if not (host.is_keyed and self.clock):
            raise ModelError(
                f"auto uses {' and '.join(each.description for each in local)} only where it measures whether that "
                "saves time, which it does with clock=true and under acceptance rules whose text doesn't depend on the "
                "drafts"
            )
        engine = self.merged([each.proposer for each in local]).bind(host)
        try:
            host.expect_hidden({each for _, what in engine.wants() if isinstance(what, Hidden) for each in what.layers})
        except BaseException:
            engine.close()
            raise
        engine.notes = tuple(f"drafted with {each.description}" for each in local)
        return engine
