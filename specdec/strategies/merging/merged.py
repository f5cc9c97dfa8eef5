"""One draft from several sources: the most probable candidates of all of them, the number that pays.

    measured costs ──────────────► DraftSizer (``sizer.py``): how many nodes of each row
    sources ► candidates with acceptance rates ► a heap by probability (``growth.py``) ► the tree

Strategies that only return trees take part by the acceptance rates of their candidates, by depth and rank; probe nodes
of theirs aren't forwarded. Sampled draws are chosen from like all others, by what was drawn, and so lose q: ``match``
decides about such a merge under rules that read q.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, SerializeAsAny

from specdec.costs import Costs
from specdec.errors import PluginError, plural
from specdec.record import Outcome, StepRecord
from specdec.strategies.base import Drafter, Engine, Host, Proposer, Request, Signal
from specdec.strategies.merging.acceptance_rates import Agreements, Rates
from specdec.strategies.merging.drafter import MergedDrafter, Part
from specdec.strategies.merging.packed_prices import PackedPrices
from specdec.strategies.merging.padded_prices import PaddedPrices
from specdec.strategies.merging.prices import Prices
from specdec.strategies.merging.sizer import DraftSizer
from specdec.strategies.merging.source import Source
from specdec.strategies.merging.tree_source import TreeSource
from specdec.tree import Budget, DraftTree

_NOMINAL = Costs(sizes=(1, 65), seconds=(1.0, 1.8), plain=1.0)  # where a measured one would decide about the text


class MergedProposer(Proposer):
    """The most probable candidates of several strategies in one tree."""

    learns_across_requests: ClassVar[bool] = True

    proposers: tuple[SerializeAsAny[Proposer], ...] = Field(min_length=1, description="whose candidates are merged")
    num_nodes: int = Field(default=32, ge=1, description="candidates of a draft at most")
    loss: float = Field(default=0.01, ge=0.0, lt=1.0, description="share of plain decoding's time that drafts may lose")
    clock: bool = Field(default=True, description="let the time that steps take correct the costs measured at load")

    def __init__(self, proposers: Sequence[Proposer] = (), **options: Any) -> None:
        options["proposers"] = tuple(proposers)
        super().__init__(**options)

    @property
    def reads_layers(self) -> bool:
        return any(proposer.reads_layers for proposer in self.proposers)

    def wants(self) -> frozenset[Signal]:
        return frozenset().union(*(proposer.wants() for proposer in self.proposers))

    def bind(self, host: Host) -> Engine:
        with ExitStack() as failing:
            parts = list[Part]()
            for proposer in self.proposers:
                parts.append(Part.of(proposer, host, [part.name for part in parts]))
                failing.callback(parts[-1].engine.close)
            if host.is_keyed:
                prices: Prices
                if host.packs_rows:
                    prices = PackedPrices(host.costs(), self.num_nodes, learns=self.clock)
                else:
                    prices = PaddedPrices(host.costs(), 2 * self.num_nodes, learns=self.clock)
                engine: Engine = MergedEngine(parts, DraftSizer(prices, self.loss), self.num_nodes, host.takes_trees)
            else:
                engine = FreshEngine(parts, self.num_nodes, host.takes_trees)
            failing.pop_all()
        return engine


class MergedEngine(Engine):
    """Grows the drafts of all requests to the size that pays for them together."""

    def __init__(self, parts: Sequence[Part], sizer: DraftSizer, num_nodes: int, takes_trees: bool) -> None:
        self.parts, self._sizer = parts, sizer
        self.agreements = Agreements()
        self._failed: dict[int, Exception] = {}  # by part, why it takes no part any more
        self._num_nodes, self._takes_trees = num_nodes, takes_trees

    def start(self, request: Request) -> Drafter:
        return MergedDrafter(request, self, self.parts, self.agreements)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        merged = [drafter for drafter in drafters if isinstance(drafter, MergedDrafter)]
        assert len(merged) == len(drafters), "an engine is given the drafters that it started"
        for drafter in merged:
            drafter.trees = {}
            for index, error in self._failed.items():
                drafter.leave_out_at(index, error)
        if self._sizer.skips(len(merged)):
            return [drafter.skip() for drafter in merged]
        for index, part in enumerate(self.parts):
            self._ask(index, part, merged, budgets)
        least_chance = self._sizer.least_probability(len(merged))
        growths = [
            drafter.begin(budget, self._takes_trees, least_chance)
            for drafter, budget in zip(merged, budgets, strict=True)
        ]
        limits = [min(self._num_nodes, budget.num_nodes) for budget in budgets]
        sizes = self._sizer.sizes(growths, limits)
        return [drafter.tree(size) for drafter, size in zip(merged, sizes, strict=True)]

    def _ask(self, index: int, part: Part, merged: Sequence["MergedDrafter"], budgets: Sequence[Budget]) -> None:
        """Ask a part that gives trees for those of all its requests; who fails is left out from then on."""
        asked = [
            (drafter, own, budget)
            for drafter, budget in zip(merged, budgets, strict=True)
            if (own := drafter.parts[index]) is not None and not isinstance(own, Source)
        ]
        if not asked:
            return
        try:
            proposals = part.engine.propose_many([own for _, own, _ in asked], [each for _, _, each in asked])
            if len(proposals) != len(asked):
                raise PluginError(f"returned {plural(len(proposals), 'tree')} for {plural(len(asked), 'request')}")
        except Exception as error:  # a third party's code
            proposals = [error] * len(asked)
        for (drafter, _, budget), proposal in zip(asked, proposals, strict=True):
            with drafter.guarding(index):
                if isinstance(proposal, Exception):
                    raise proposal
                proposal.check(drafter.request.root, drafter.request.vocab_size, budget, part.name)
                drafter.trees[index] = proposal

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        self._sizer.learn(record, outcomes)
        for index, part in enumerate(self.parts):
            if index not in self._failed:
                try:
                    part.engine.learn(record, outcomes)
                except Exception as error:  # a third party's code
                    self._failed[index] = error

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        return all(part.engine.prepare(on_progress, seconds) for part in self.parts)

    def forget(self) -> None:
        self.agreements.clear()
        self._sizer.forget()
        for part in self.parts:
            part.rates.clear()
            part.engine.forget()

    def close(self) -> None:
        _close(self.parts)


class FreshEngine(Engine):
    """Begins each request with nothing learnt and fixed costs: for rules under which the text depends on the drafts."""

    def __init__(self, parts: Sequence[Part], num_nodes: int, takes_trees: bool) -> None:
        self._parts, self._num_nodes, self._takes_trees = parts, num_nodes, takes_trees

    def start(self, request: Request) -> Drafter:
        parts = [replace(part, rates=Rates(part.name, TreeSource.prior)) for part in self._parts]
        sizer = DraftSizer(PaddedPrices(_NOMINAL, 2 * self._num_nodes, learns=False), loss=math.inf)
        return MergedEngine(parts, sizer, self._num_nodes, self._takes_trees).start(request)

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        for part in self._parts:
            part.engine.learn(record, outcomes)

    def forget(self) -> None:
        for part in self._parts:
            part.engine.forget()

    def close(self) -> None:
        _close(self._parts)


def _close(parts: Sequence[Part]) -> None:
    """Close all engines, whatever one raises."""
    with ExitStack() as closing:
        for part in parts:
            closing.callback(part.engine.close)
