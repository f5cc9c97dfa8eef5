"""One request's part in a merge: its drafters, and the tree that is grown from what they know."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Self

from specdec.errors import failure
from specdec.strategies.base import BatchDrafter, Drafter, Engine, Feedback, Host, Proposer, Request
from specdec.strategies.merging.acceptance_rates import Rates
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.source import Source
from specdec.strategies.merging.tree_source import TreeSource
from specdec.tree import ROOT, Budget, DraftTree, Role

if TYPE_CHECKING:
    from specdec.strategies.merging.merged import MergedEngine


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A strategy that takes part in a merge; ``rates`` are those of its trees' nodes, where it gives trees."""

    name: str
    engine: Engine
    rates: Rates

    @classmethod
    def of(cls, proposer: Proposer, host: Host, others: Sequence[str]) -> Self:
        """A proposer bound to a generator's model, under a name that no other part has."""
        own = re.sub("(?<!^)(?=[A-Z])", "_", type(proposer).__name__.removesuffix("Proposer")).lower()
        names = chain([own], (f"{own} {number}" for number in count(2)))
        name = next(name for name in names if name not in others)
        return cls(name, proposer.bind(host), Rates(name, TreeSource.prior))


class MergedDrafter(BatchDrafter):
    """One request's drafters, one for each part. A part that fails is None from then on, and is named in ``notes``."""

    def __init__(self, request: Request, engine: "MergedEngine") -> None:
        super().__init__(request, engine)
        self._engine = engine
        self.parts: list[Drafter | None] = [None] * len(engine.parts)
        self._started: dict[int, Drafter] = {}  # those that have failed since among them
        self._left_out: set[int] = set()
        self.trees: dict[int, DraftTree] = {}  # of the step under way, by part
        self.growth: Growth | None = None  # of the step under way
        self._extra: dict[int, list[int]] = {}  # by part, the nodes of its tree that go along whole
        self._resting: set[int] = set()  # parts whose window was made in vain: they don't hear of half a window
        for index, part in enumerate(engine.parts):
            with self.guarding(index):
                started = self.parts[index] = part.engine.start(request)
                self._started[index] = started

    @contextmanager
    def guarding(self, index: int) -> Iterator[None]:
        """Leave a part out from now on if it fails."""
        try:
            yield
        except Exception as error:  # a third party's code
            self.leave_out_at(index, error)

    def _leave_out(self, source: Source, error: Exception) -> None:
        if source in self.parts:
            self.leave_out_at(self.parts.index(source), error)

    def leave_out_at(self, index: int, error: Exception) -> None:
        """Leave a part out from now on, and say so."""
        if index in self._left_out:
            return
        self.parts[index] = None
        self._left_out.add(index)
        name = self._engine.parts[index].name
        self.notes = (*self.notes, str(failure(f"drafting goes on without {name}, which", error)))

    def read(self, num_tokens: int, budget: Budget) -> None:
        for index, part in enumerate(self.parts):
            if part is not None:
                with self.guarding(index):
                    part.read(num_tokens, budget)

    def begin(self, budget: Budget, takes_trees: bool, least_chance: float) -> Growth:
        """Begin to grow a tree from what the parts know."""
        sources: list[Source] = []
        self._extra = {}
        for index, part in enumerate(self.parts):
            tree = self.trees.get(index)
            if isinstance(part, Source):
                sources.append(part)
            elif tree is not None:
                sources.append(TreeSource(self.request, tree, self._engine.parts[index].rates))
                extra = _window(tree)
                if takes_trees and self.num_extra + len(extra) <= budget.num_nodes:
                    self._extra[index] = extra
        self.growth = Growth(
            sources, self.request, budget, self._engine.agreements, least_chance, not takes_trees, self._leave_out
        )
        return self.growth

    def rest(self) -> DraftTree:
        """The root alone: nothing is drafted."""
        self.growth, self._extra, self._resting = None, {}, set()
        return DraftTree(self.request.root)

    @property
    def num_extra(self) -> int:
        """Nodes that go along whole or not at all."""
        return sum(map(len, self._extra.values()))

    @property
    def num_unearning(self) -> int:
        """Those among them that are no candidates: they are fed for what they teach alone."""
        return sum(
            not self.trees[index].roles[node] & Role.CANDIDATE for index, nodes in self._extra.items() for node in nodes
        )

    def tree(self, width: int, has_extra: bool) -> DraftTree:
        """The first nodes of the growth, and with them what goes along whole or not at all."""
        assert self.growth is not None, "begun before"
        grown = self.growth.tree(width)
        self._resting = set() if has_extra else {index for index, window in self._extra.items() if window}
        for index, tree in self.trees.items():
            place = {ROOT: ROOT}
            for node in range(1, len(tree)):  # parents precede children
                above = place.get(tree.parents[node])
                same = None if above is None else grown.child(above, tree.tokens[node])
                if same is not None and tree.roles[node] & Role.CANDIDATE:
                    place[node] = same
            grown.graft(tree, sorted({*place, *(self._extra.get(index, ()) if has_extra else ())}), {ROOT: ROOT})
        # What is grown from a sampled tree is chosen by what was drawn, and others' nodes stand among its own.
        grown.has_true_laws = not any(tree.has_sampled_draws for tree in self.trees.values())
        return grown

    def observe(self, feedback: Feedback) -> None:
        if self.growth is not None:
            self.growth.learn(feedback.tokens)
        for index, part in enumerate(self.parts):
            with self.guarding(index):
                if isinstance(part, Source):
                    part.hear(feedback)
                elif part is not None and index in self.trees and index not in self._resting:
                    part.observe(feedback.about(self.trees[index]))

    def stop(self) -> None:
        for index, started in self._started.items():
            with self.guarding(index):
                started.stop()


def _window(tree: DraftTree) -> list[int]:
    """The nodes of a window with what is above them, ascending: they go along whole."""
    nodes = set[int]()
    for node in tree.nodes_with(Role.PROBE):
        nodes.update(tree.lineage(node))
    return sorted(nodes - {ROOT})
