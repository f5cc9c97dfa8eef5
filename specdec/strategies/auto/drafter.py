"""One request's part in a merge: its drafters, and the tree that is grown from what they know."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
        num_same = sum(name.partition(" ")[0] == own for name in others)
        name = f"{own} {num_same + 1}" if num_same else own
        return cls(name, proposer.bind(host), AcceptanceRates(name, TreeSource.prior))


class MergedDrafter(BatchDrafter):
    """One request's drafters, one for each part. A part that fails is left out from then on, and named in ``notes``."""

    def __init__(self, request: Request, engine: Engine, parts: Sequence[Part], agreements: Agreements) -> None:
        super().__init__(request, engine)
        self._all, self._agreements = parts, agreements
        self.parts: dict[int, Drafter] = {}  # those that haven't failed, by place in the merge
        self.trees: dict[int, DraftTree] = {}  # of the step under way, by part
        self.growth: Growth | None = None  # of the step under way
        for index, part in enumerate(parts):
            with self.guarding(index):
                self.parts[index] = started(part.engine, _of_part(request, index))
        self._started = {**self.parts}
        self._receiving = [index for index, each in self.parts.items() if type(each).receive is not Drafter.receive]

    @contextmanager
    def guarding(self, index: int) -> Iterator[None]:
        """Leave a part out from now on if it fails."""
        try:
            yield
        except Exception as error:  # a third party's code
            self.leave_out(index, error)

    def leave_out(self, index: int, error: Exception) -> None:
        """Leave a part out from now on, and say so once."""
        self.parts.pop(index, None)
        said = f"drafting goes on without {self._all[index].name}, which"
        if not any(note.startswith(said) for note in self.notes):
            self.notes = (*self.notes, str(failure(said, error)))

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        for index, part in [*self.parts.items()]:
            with self.guarding(index):
                part.read(num_tokens, budget, signals)

    def begin(self, budget: Budget, min_probability: float, is_chain: bool) -> Growth:
        """Begin to grow a tree of the parts' candidates."""
        sources = dict[int, CandidateSource]()
        for index, part in self.parts.items():
            if index in self.trees:
                sources[index] = TreeSource(self.trees[index], self._all[index].acceptance_rates)
            elif isinstance(part, Source):
                sources[index] = part
        growth = Growth(sources, self.request, budget, self._agreements, min_probability, is_chain, self.leave_out)
        self.growth = growth
        return growth

    def skip(self, budget: Budget, is_plain: bool) -> DraftTree:
        """Return what a constraint makes certain alone, and nothing for a plain step."""
        self.growth = None
        if is_plain or self.request.constraint() is None:
            return DraftTree(self.request.root)
        sources = {index: part for index, part in self.parts.items() if isinstance(part, Source) and part.is_certain}
        growth = Growth(sources, self.request, budget, None, _CERTAIN, is_chain=True, on_failure=self.leave_out)
        growth.take_all()
        self.growth = growth
        return growth.tree(len(growth))

    def tree(self, size: int) -> DraftTree:
        """Return the first nodes of the growth, the root included."""
        assert self.growth is not None, "begun before"
        grown = self.growth.tree(size)
        for tree in self.trees.values():
            place = {ROOT: ROOT}
            for node in range(1, len(tree)):  # parents precede children
                above = place.get(tree.parents[node])
                same = None if above is None else grown.child(above, tree.tokens[node])
                if same is not None and tree.roles[node] & Role.CANDIDATE:
                    place[node] = same
            grown.sources.append((tree, place))
            # What is grown from a sampled tree is chosen by what was drawn, and others' nodes stand among its own.
            grown.has_true_q &= not tree.has_sampled_draws
        return grown

    def receive(self, feedback: Feedback) -> None:
        for index in self._receiving:
            if index in self.parts:
                with self.guarding(index):
                    self.parts[index].receive(feedback)

    def observe(self, feedback: Feedback) -> None:
        if self.growth is not None:
            self.growth.learn(feedback.tokens)
        for index, tree in self.trees.items():
            if index in self.parts:
                with self.guarding(index):
                    self.parts[index].observe(feedback.about(tree))

    def retain(self, start: int, stop: int) -> Retained | None:
        states = dict[int, Retained]()
        for index, part in [*self.parts.items()]:
            with self.guarding(index):
                if (state := part.retain(start, stop)) is not None:
                    states[index] = state
        return Retained(states, sum(state.num_bytes for state in states.values())) if states else None

    def stop(self) -> None:
        for index, drafter in self._started.items():
            with self.guarding(index):
                drafter.stop()
            if index in self.parts:
                self.notes = (*self.notes, *drafter.notes)


def _of_part(request: Request, index: int) -> Request:
    """A merge's request as a part sees it: with the state that the part itself has retained."""
    states = [each.state.get(index) for each in request.retained]
    return replace(request, retained=() if None in states else tuple(states))
