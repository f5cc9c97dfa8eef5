"""One draft from several sources: the most probable candidates of all of them, the number that pays.

    costs of the engine ─────────► DraftSizer (``sizer.py``): how many nodes of each row
    sources ► candidates with acceptance rates ► a heap by probability (``growth.py``) ► the tree

Strategies that only return trees take part by the acceptance rates of their candidates, by depth and rank. Those that
learn from probe nodes are refused, because a merge forwards none. Sampled draws are chosen from like all others, by
what was drawn, and so lose q: ``match`` decides about such a merge under rules that read q.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any, ClassVar, Self

from pydantic import Field, SerializeAsAny, model_validator

from specdec.costs import NOMINAL_COSTS
from specdec.errors import PluginError, close_all, plural
from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.acceptance_rates import AcceptanceRates, Agreements
from specdec.strategies.auto.drafter import MergedDrafter, Part, name_of
from specdec.strategies.auto.loss_budget import LossBudget
from specdec.strategies.auto.pass_pricing import PassPricing, SizedDrafts
from specdec.strategies.auto.sizer import DraftSizer, SpeedupSizer
from specdec.strategies.auto.source import Source, TreeSource
from specdec.strategies.base import Drafter, Engine, Pays, Proposer
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.signals import Nodes, Signal
from specdec.tree import Budget, DraftTree


class MergeOptions(Proposer):
    """The options of every merge, ``auto`` included."""

    learns_across_requests: ClassVar[bool] = True

    num_nodes: int = Field(default=32, ge=1, description="candidates of a draft at most")
    loss: float = Field(default=0.01, ge=0.0, lt=1.0, description="share of plain decoding's time that drafts may lose")
    clock: bool = Field(default=True, description="let the time that steps take correct the costs measured at load")


class MergedProposer(MergeOptions):
    """The most probable candidates of several strategies in one tree."""

    proposers: tuple[SerializeAsAny[Proposer], ...] = Field(min_length=1, description="whose candidates are merged")

    def __init__(self, proposers: Sequence[Proposer] = (), **options: Any) -> None:
        options["proposers"] = tuple(proposers)
        super().__init__(**options)

    @model_validator(mode="after")
    def _without_probes(self) -> Self:
        for proposer in self.proposers:
            if any(nodes is Nodes.PROBE for nodes, _ in proposer.wants()):
                name = name_of(proposer)
                raise ValueError(
                    f"{name} learns from probe nodes, and a merge forwards only the most probable candidates: use "
                    f"{name} alone, or merge suffix or prompt_lookup in its place"
                )
        return self

    @property
    def reads_layers(self) -> bool:
        return any(proposer.reads_layers for proposer in self.proposers)

    def wants(self) -> frozenset[Signal]:
        return frozenset().union(*(proposer.wants() for proposer in self.proposers))

    def check_files(self) -> None:
        for proposer in self.proposers:
            proposer.check_files()

    def bind(self, host: Host) -> Engine:
        learns = host.is_keyed and self.clock
        costs = host.cost_model(host.costs() if host.is_keyed else NOMINAL_COSTS, 2 * self.num_nodes, learns)
        budget = LossBudget(self.loss if host.is_keyed else math.inf, has_trials=learns)
        return self.bind_with(host, SpeedupSizer(costs, budget), budget if learns else None)

    def bind_with(self, host: Host, sizer: DraftSizer, budget: LossBudget | None = None) -> Engine:
        """Do as ``bind``, with a draft sizer of the caller's own.

        Args:
            budget: of passes of parts with a model; without one, they always run.
        """
        with ExitStack() as failing:
            parts = list[Part]()
            for proposer in self.proposers:
                parts.append(Part.of(proposer, host, [part.name for part in parts]))
                failing.callback(parts[-1].engine.close)
            engine = MergedEngine(parts, sizer, self.num_nodes, host.takes_trees, learns=host.is_keyed, budget=budget)
            failing.pop_all()
        return engine


class MergedEngine(Engine):
    """Grows the drafts of all requests to the size that pays for them together.

    If ``learns`` is False, each request begins with nothing learnt and is sized alone, for acceptance rules under which
    the text depends on the drafts. Passes of parts with a model spend from ``budget``; without one, they always run.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        sizer: DraftSizer,
        num_nodes: int,
        takes_trees: bool,
        learns: bool = True,
        budget: LossBudget | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.parts, self._sizer, self._learns = parts, sizer, learns
        self.notes = tuple(note for part in parts for note in part.engine.notes)
        self._budget, self._clock = budget, clock
        self._passes = self._new_passes()
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
        most = self._num_nodes
        limits = [replace(budget, num_nodes=min(most, budget.num_nodes)) for budget in budgets]
        if self._sizer.skips(len(merged)):
            is_plain = self._sizer.is_plain
            return [drafter.skip(limit, is_plain) for drafter, limit in zip(merged, limits, strict=True)]
        for index, part in enumerate(self.parts):
            self._propose_trees(index, part, merged, budgets)
        for index, passes in self._passes.items():
            if passes is None:
                self._prepare_drafts(index, range(len(merged)), merged, limits, pays=lambda _: True)
        drafts = self._grow(merged, limits)
        for index, passes in self._passes.items():
            if passes is not None:
                drafts = self._improve(drafts, index, passes, merged, limits)
        return [drafter.tree(size) for drafter, size in zip(merged, drafts.sizes, strict=True)]

    def _grow(self, merged: Sequence[MergedDrafter], budgets: Sequence[Budget]) -> SizedDrafts:
        """Grow the trees of all requests, of the candidates that their parts have now, to the size that pays."""
        least = self._sizer.min_probability(len(merged))
        rows = zip(merged, budgets, strict=True)
        growths = [drafter.begin(budget, least, is_chain=not self._takes_trees) for drafter, budget in rows]
        sizes = self._sizer.sizes(growths)
        return SizedDrafts(growths, sizes, self._sizer.cost)

    def _improve(
        self,
        drafts: SizedDrafts,
        index: int,
        passes: PassPricing,
        merged: Sequence[MergedDrafter],
        budgets: Sequence[Budget],
    ) -> SizedDrafts:
        """Let a part run those of its passes that pay; return the drafts with its candidates."""
        rows = [row for row, drafter in enumerate(merged) if drafter.parts[index] is not None]
        passes.begin(drafts, rows, self._sizer.speed_up)
        self._prepare_drafts(index, rows, merged, budgets, passes.pays)
        if passes.has_run:
            drafts = self._grow(merged, budgets)
        passes.end(drafts)
        return drafts

    def _new_passes(self) -> dict[int, PassPricing | None]:
        """Return the pricing of each part that drafts by passes of a model; None if they always run."""
        parts = [index for index, part in enumerate(self.parts) if _has_passes(part.engine)]
        return {index: PassPricing(self._budget, self._clock) if self._budget else None for index in parts}

    def _prepare_drafts(
        self,
        index: int,
        rows: Sequence[int],
        merged: Sequence[MergedDrafter],
        budgets: Sequence[Budget],
        pays: Pays,
    ) -> None:
        """Let a part run its passes for some requests; if it fails, it is left out of all from then on."""
        own = [(part, budgets[row]) for row in rows if (part := merged[row].parts[index]) is not None]
        try:
            if own:
                self.parts[index].engine.prepare_drafts([part for part, _ in own], [budget for _, budget in own], pays)
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
            self._learn(record, outcomes)
        for index, part in enumerate(self.parts):
            if index not in self._failed:
                try:
                    part.engine.learn(record, outcomes)
                except Exception as error:  # a third party's code
                    self._failed[index] = error

    def _learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Learn what nodes and passes cost and win; each from the step's time without the other's."""
        weighed = [passes for passes in self._passes.values() if passes is not None]
        searching = record.seconds.get("propose", 0.0) - sum(passes.seconds for passes in weighed)
        spent = sum(passes.cost for passes in weighed)
        for passes in weighed:
            passes.learn(record, outcomes, self._sizer.cost)
        self._sizer.learn(replace(record, seconds={**record.seconds, "propose": searching}), outcomes, spent)

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        return all(part.engine.prepare(on_progress, seconds) for part in self.parts)

    def forget(self) -> None:
        self.agreements.clear()
        if self._budget is not None:
            self._budget.forget()
        self._passes = self._new_passes()
        self._sizer.forget()
        for part in self.parts:
            part.acceptance_rates.clear()
            part.engine.forget()

    def close(self) -> None:
        close_all(part.engine for part in self.parts)


def _has_passes(engine: Engine) -> bool:
    return type(engine).prepare_drafts is not Engine.prepare_drafts
