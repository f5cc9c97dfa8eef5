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
from time import perf_counter
from typing import Any, ClassVar

from pydantic import Field, SerializeAsAny

from specdec.costs import Costs
from specdec.errors import PluginError, close_all, plural
from specdec.record import Outcome, StepRecord
from specdec.strategies.base import Drafter, Engine, Host, Proposer, Request, Signal
from specdec.strategies.merging.acceptance_rates import AcceptanceRates, Agreements
from specdec.strategies.merging.drafter import MergedDrafter, Part
from specdec.strategies.merging.padded_cost_model import PaddedCostModel
from specdec.strategies.merging.pass_payoff import PassPayoff
from specdec.strategies.merging.sizer import DraftSizer, SpeedupSizer
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
        return self.bind_with(host, self._sizer)

    def bind_with(self, host: Host, sizer: Callable[[Host], DraftSizer]) -> Engine:
        """Do as ``bind``, with a draft sizer of the caller's own."""
        with ExitStack() as failing:
            parts = list[Part]()
            for proposer in self.proposers:
                parts.append(Part.of(proposer, host, [part.name for part in parts]))
                failing.callback(parts[-1].engine.close)
            engine = MergedEngine(
                parts,
                sizer(host),
                self.num_nodes,
                host.takes_trees,
                learns=host.is_keyed,
                weighs_passes=host.is_keyed and self.clock,
            )
            failing.pop_all()
        return engine

    def _sizer(self, host: Host) -> DraftSizer:
        max_width = 2 * self.num_nodes
        if not host.is_keyed:
            return SpeedupSizer(PaddedCostModel(_NOMINAL, max_width, learns=False), loss=math.inf)
        return SpeedupSizer(PaddedCostModel(host.costs(), max_width, learns=self.clock), self.loss)


class MergedEngine(Engine):
    """Grows the drafts of all requests to the size that pays for them together.

    If ``learns`` is False, each request begins with nothing learnt and is sized alone, for acceptance rules under which
    the text depends on the drafts. If ``weighs_passes``, parts that draft by passes of a model are called only while
    these save more time than they take.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        sizer: DraftSizer,
        num_nodes: int,
        takes_trees: bool,
        learns: bool = True,
        weighs_passes: bool = False,
    ) -> None:
        self.parts, self._sizer, self._learns, self._weighs_passes = parts, sizer, learns, weighs_passes
        self._payoffs = self._new_payoffs()
        self.agreements = Agreements()
        self._failed: dict[int, Exception] = {}  # by part, why it takes no part any more
        self._num_nodes, self._takes_trees = num_nodes, takes_trees

    def wants(self) -> frozenset[Signal]:
        return frozenset().union(*(part.engine.wants() for part in self.parts))

    def start(self, request: Request) -> Drafter:
        parts, agreements = self.parts, self.agreements
        if not self._learns:
            parts = [replace(part, acceptance_rates=AcceptanceRates(part.name, TreeSource.prior)) for part in parts]
            agreements = Agreements()
        return MergedDrafter(request, self, parts, agreements)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        merged = [drafter for drafter in drafters if isinstance(drafter, MergedDrafter)]
        assert len(merged) == len(drafters), "an engine is given the drafters that it started"
        if self._learns:
            return self._propose(merged, budgets)
        return [self._propose([drafter], [budget])[0] for drafter, budget in zip(merged, budgets, strict=True)]

    def _propose(self, merged: Sequence[MergedDrafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """Return the trees of requests that are sized together."""
        for drafter in merged:
            drafter.trees = {}
            for index, error in self._failed.items():
                drafter.leave_out(index, error)
        limits = [replace(budget, num_nodes=min(self._num_nodes, budget.num_nodes)) for budget in budgets]
        if self._sizer.skips(len(merged)):
            is_plain = self._sizer.is_plain
            return [drafter.skip(limit, is_plain) for drafter, limit in zip(merged, limits, strict=True)]
        for index, part in enumerate(self.parts):
            self._propose_trees(index, part, merged, budgets)
        min_probability = self._sizer.min_probability(len(merged))
        for index, payoff in self._payoffs.items():
            if payoff.begin() or not self._weighs_passes:
                began = perf_counter()
                self._prepare_drafts(index, merged, limits)
                payoff.add_pass(perf_counter() - began)
        growths = [
            drafter.begin(limit, min_probability, is_chain=not self._takes_trees)
            for drafter, limit in zip(merged, limits, strict=True)
        ]
        return [drafter.tree(size) for drafter, size in zip(merged, self._sizer.sizes(growths), strict=True)]

    def _new_payoffs(self) -> dict[int, PassPayoff]:
        """Return a payoff for each part that drafts by passes of a model."""
        names = {index: part.name for index, part in enumerate(self.parts) if _has_passes(part.engine)}
        return {index: PassPayoff(name) for index, name in names.items()}

    def _prepare_drafts(self, index: int, merged: Sequence[MergedDrafter], budgets: Sequence[Budget]) -> None:
        """Let a part run its passes for all requests; if it fails, it is left out of these from then on."""
        rows = [
            (own, budget)
            for drafter, budget in zip(merged, budgets, strict=True)
            if (own := drafter.parts[index]) is not None
        ]
        try:
            if rows:
                self.parts[index].engine.prepare_drafts([own for own, _ in rows], [budget for _, budget in rows])
        except Exception as error:  # a third party's code
            for drafter in merged:
                drafter.leave_out(index, error)

    def _propose_trees(
        self, index: int, part: Part, merged: Sequence[MergedDrafter], budgets: Sequence[Budget]
    ) -> None:
        """Let a part that returns trees propose for all requests; where it fails, it is left out from then on."""
        rows = [
            (drafter, own, budget)
            for drafter, budget in zip(merged, budgets, strict=True)
            if (own := drafter.parts[index]) is not None and not isinstance(own, Source)
        ]
        if not rows:
            return
        try:
            proposals = part.engine.propose_many([own for _, own, _ in rows], [budget for *_, budget in rows])
            if len(proposals) != len(rows):
                raise PluginError(f"returned {plural(len(proposals), 'tree')} for {plural(len(rows), 'request')}")
        except Exception as error:  # a third party's code
            proposals = [error] * len(rows)
        for (drafter, _, budget), proposal in zip(rows, proposals, strict=True):
            with drafter.guarding(index):
                if isinstance(proposal, Exception):
                    raise proposal
                proposal.check(drafter.request.root, drafter.request.vocab_size, budget, part.name)
                drafter.trees[index] = proposal

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        if self._learns:
            self._sizer.learn(record, outcomes)
            for payoff in self._payoffs.values():
                payoff.learn(record, outcomes)
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
        self._payoffs = self._new_payoffs()
        self._sizer.forget()
        for part in self.parts:
            part.acceptance_rates.clear()
            part.engine.forget()

    def close(self) -> None:
        close_all(part.engine for part in self.parts)


def _has_passes(engine: Engine) -> bool:
    return type(engine).prepare_drafts is not Engine.prepare_drafts
