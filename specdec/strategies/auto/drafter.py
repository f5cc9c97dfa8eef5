"""One request's part in a merge: its drafters, and the tree that is grown from what they know."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Self

from specdec.errors import failure
from specdec.strategies.auto.acceptance_rates import AcceptanceRates, Agreements
from specdec.strategies.auto.growth import CandidateSource, Growth
from specdec.strategies.auto.source import Source, TreeSource
from specdec.strategies.base import BatchDrafter, Drafter, Engine, Proposer, started
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request, Retained
from specdec.strategies.signals import Answers, Signal
from specdec.tree import ROOT, Budget, DraftTree, Role

_CERTAIN = 0.8  # probability that a node and all nodes above it are accepted


def name_of(proposer: Proposer) -> str:
    """Return a strategy's name by its class: ``token_recycling`` for a ``TokenRecyclingProposer``."""
    return re.sub("(?<!^)(?=[A-Z])", "_", type(proposer).__name__.removesuffix("Proposer")).lower()


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A strategy in a merge; ``acceptance_rates`` are the acceptance rates of its candidates if it returns trees."""

    name: str
    engine: Engine
    acceptance_rates: AcceptanceRates

    @classmethod
    def of(cls, proposer: Proposer, host: Host, others: Sequence[str]) -> Self:
        """A proposer bound to a generator's model, under a name that no other part has."""
        own = name_of(proposer)
        names = chain([own], (f"{own} {number}" for number in count(2)))
        name = next(name for name in names if name not in others)
        return cls(name, proposer.bind(host), AcceptanceRates(name, TreeSource.prior))


class MergedDrafter(BatchDrafter):
    """One request's drafters, one for each part. A part that fails is None from then on, and is named in ``notes``."""

    def __init__(self, request: Request, engine: Engine, parts: Sequence[Part], agreements: Agreements) -> None:
        super().__init__(request, engine)
        self._parts, self._agreements = parts, agreements
        self.parts: list[Drafter | None] = [None] * len(parts)
        self._started: dict[int, Drafter] = {}  # those that have failed since among them
        self._left_out: set[int] = set()
        self.trees: dict[int, DraftTree] = {}  # of the step under way, by part
        self.growth: Growth | None = None  # of the step under way
        for index, part in enumerate(parts):
            with self.guarding(index):
                self.parts[index] = self._started[index] = started(part.engine, _of_part(request, index))
        started_parts = self._started.items()
        self._certain = [each for _, each in started_parts if isinstance(each, Source) and each.is_certain]
        self._receiving = [index for index, each in started_parts if type(each).receive is not Drafter.receive]

    @contextmanager
    def guarding(self, index: int) -> Iterator[None]:
        """Leave a part out from now on if it fails."""
        try:
            yield
        except Exception as error:  # a third party's code
            self.leave_out(index, error)

    def leave_out(self, index: int, error: Exception) -> None:
        """Leave a part out from now on, and say so."""
        if index in self._left_out:
            return
        self.parts[index] = None
        self._left_out.add(index)
        name = self._parts[index].name
        self.notes = (*self.notes, str(failure(f"drafting goes on without {name}, which", error)))

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        for index, part in enumerate(self.parts):
            if part is not None:
                with self.guarding(index):
                    part.read(num_tokens, budget, signals)

    def begin(self, budget: Budget, min_probability: float, is_chain: bool) -> Growth:
        """Begin to grow a tree of the parts' candidates."""
        sources: list[CandidateSource | None] = [part if isinstance(part, Source) else None for part in self.parts]
        for index, tree in self.trees.items():
            sources[index] = TreeSource(self.request, tree, self._parts[index].acceptance_rates)
        growth = Growth(sources, self.request, budget, self._agreements, min_probability, is_chain, self.leave_out)
        self.growth = growth
        return growth

    def skip(self, budget: Budget, is_plain: bool) -> DraftTree:
        """Return the candidates of certain sources alone, or of none for a plain step."""
        self.growth = None
        if is_plain or not self._has_certain():
            return DraftTree(self.request.root)
        sources = [part if part in self._certain else None for part in self.parts]
        growth = Growth(sources, self.request, budget, None, _CERTAIN, is_chain=True, on_failure=self.leave_out)
        growth.take_all()
        self.growth = growth
        return growth.tree(len(growth))

    def _has_certain(self) -> bool:
        """Return True if a certain source may have candidates."""
        try:
            return any(part.root() is not None for part in self._certain)
        except Exception:  # the growth leaves it out
            return True

    def tree(self, size: int) -> DraftTree:
        """Return the first nodes of the growth, the root included, with the draws of the parts' trees."""
        assert self.growth is not None, "begun before"
        grown = self.growth.tree(size)
        if not self.trees:
            return grown
        for tree in self.trees.values():
            place = {ROOT: ROOT}
            for node in range(1, len(tree)):  # parents precede children
                above = place.get(tree.parents[node])
                same = None if above is None else grown.child(above, tree.tokens[node])
                if same is not None and tree.roles[node] & Role.CANDIDATE:
                    place[node] = same
            grown.graft(tree, sorted(place), {ROOT: ROOT})
        # What is grown from a sampled tree is chosen by what was drawn, and others' nodes stand among its own.
        grown.has_true_q = not any(tree.has_sampled_draws for tree in self.trees.values())
        return grown

    def receive(self, feedback: Feedback) -> None:
        for index in self._receiving:
            part = self.parts[index]
            if part is not None:
                with self.guarding(index):
                    part.receive(feedback)

    def observe(self, feedback: Feedback) -> None:
        if self.growth is not None:
            self.growth.learn(feedback.tokens)
        for index, tree in self.trees.items():
            part = self.parts[index]
            if part is not None:
                with self.guarding(index):
                    part.observe(feedback.about(tree))

    def retain(self, start: int, stop: int) -> Retained | None:
        states: list[Retained | None] = [None] * len(self.parts)
        for index, part in enumerate(self.parts):
            if part is not None:
                with self.guarding(index):
                    states[index] = part.retain(start, stop)
        num_bytes = sum(state.num_bytes for state in states if state is not None)
        return Retained(states, num_bytes) if any(states) else None

    def stop(self) -> None:
        for index, drafter in self._started.items():
            with self.guarding(index):
                drafter.stop()


def _of_part(request: Request, index: int) -> Request:
    """A merge's request as a part sees it: with the state that the part itself has retained."""
    if not request.retained:
        return request
    states = [each.state[index] for each in request.retained]
    return replace(request, retained=() if None in states else tuple(states))
