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
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.pass_pricing import PassPricing
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

    @property
    def reads_reference(self) -> bool:
        return any(proposer.reads_reference for proposer in self.proposers)

    def wants(self) -> frozenset[Signal]:
        return frozenset().union(*(proposer.wants() for proposer in self.proposers))

    def check_files(self) -> None:
        for proposer in self.proposers:
            proposer.check_files()

    def bind(self, host: Host) -> Engine:
        learns = host.is_keyed and self.clock
        costs = host.cost_model(host.costs() if host.is_keyed else NOMINAL_COSTS, 2 * self.num_nodes, learns)
        return self.bind_with(host, SpeedupSizer(costs, self.loss if host.is_keyed else math.inf))

    def bind_with(self, host: Host, sizer: DraftSizer) -> Engine:
        """Do as ``bind``, with a draft sizer of the caller's own."""
        with ExitStack() as failing:
            parts = list[Part]()
            for proposer in self.proposers:
                parts.append(Part.of(proposer, host, [part.name for part in parts]))
                failing.callback(parts[-1].engine.close)
            engine = MergedEngine(parts, sizer, self.num_nodes, host.takes_trees, learns=host.is_keyed)
            failing.pop_all()
        return engine


class MergedEngine(Engine):
    """Grows the drafts of all requests to the size that pays for them together.

    If ``learns`` is False, each request begins with nothing learnt and is sized alone, for acceptance rules under which
    the text depends on the drafts. Passes of parts with a model spend from the sizer's budget if it has trials, and
    always run otherwise.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        sizer: DraftSizer,
        num_nodes: int,
        takes_trees: bool,
        learns: bool = True,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.parts, self._sizer, self._learns = parts, sizer, learns
        self.notes = tuple(note for part in parts for note in part.engine.notes)
        self._num_nodes, self._takes_trees, self._clock = num_nodes, takes_trees, clock
        self.agreements = Agreements()
        self._failed: dict[int, Exception] = {}  # by part, why it takes no part any more
        self._begun: list[PassPricing] = []  # in the step under way
        self._price_passes()

    def _price_passes(self) -> None:
        """Begin anew to learn what the passes of parts with a model cost and win."""
        engines, budget = [part.engine for part in self.parts], self._sizer.budget
        parts = [index for index, each in enumerate(engines) if type(each).prepare_drafts is not Engine.prepare_drafts]
        self._passes = {index: PassPricing(budget, self._clock) for index in parts if budget and budget.has_trials}

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
        self._begun = []
        for drafter in merged:
            drafter.trees = {}
            for index, error in self._failed.items():
                drafter.leave_out(index, error)
        most = self._num_nodes
        limits = [replace(budget, num_nodes=min(most, budget.num_nodes)) for budget in budgets]
        if self._sizer.skips(len(merged)):
            is_plain = self._sizer.is_plain
            return [drafter.skip(limit, is_plain) for drafter, limit in zip(merged, limits, strict=True)]
        for index in range(len(self.parts)):
            if index not in self._passes:
                self._draft(index, merged, budgets)
        growths, sizes = self._grow(merged, limits)
        for index, passes in self._passes.items():
            rows = [row for row, drafter in enumerate(merged) if index in drafter.parts]
            passes.begin([*zip(growths, sizes, strict=True)], rows, self._sizer)
            self._begun.append(passes)
            self._draft(index, merged, limits, passes.pays)
            if passes.began:
                growths, sizes = self._grow(merged, limits)
            passes.end()
        return [drafter.tree(size) for drafter, size in zip(merged, sizes, strict=True)]

    def _grow(self, merged: Sequence[MergedDrafter], budgets: Sequence[Budget]) -> tuple[list[Growth], list[int]]:
        """Grow the trees of all requests, of the candidates that their parts have now, to the sizes that pay."""
        least, rows = self._sizer.min_probability(len(merged)), zip(merged, budgets, strict=True)
        growths = [drafter.begin(budget, least, is_chain=not self._takes_trees) for drafter, budget in rows]
        return growths, self._sizer.sizes(growths)

    def _draft(
        self,
        index: int,
        merged: Sequence[MergedDrafter],
        budgets: Sequence[Budget],
        pays: Pays = lambda _: True,
    ) -> None:
        """Let a part draft for all requests, a source by its passes and others trees; leave it out where it fails."""
        part, rows = self.parts[index], [row for row, drafter in enumerate(merged) if index in drafter.parts]
        own, limits = [merged[row].parts[index] for row in rows], [budgets[row] for row in rows]
        if not own:
            return
        try:
            if isinstance(own[0], Source):
                part.engine.prepare_drafts(own, limits, pays)
                return
            proposals = part.engine.propose_many(own, limits)
            if len(proposals) != len(rows):
                raise PluginError(f"returned {plural(len(proposals), 'tree')} for {plural(len(rows), 'request')}")
        except Exception as error:  # a third party's code
            proposals = [error] * len(rows)
        for row, budget, proposal in zip(rows, limits, proposals, strict=True):
            drafter = merged[row]
            with drafter.guarding(index):
                if isinstance(proposal, Exception):
                    raise proposal
                proposal.check(drafter.request.root, drafter.request.vocab_size, budget, part.name)
                drafter.trees[index] = proposal

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        if self._learns:  # what nodes and passes cost and win, each from the step's time without the other's
            searching = record.seconds.get("propose", 0.0) - sum(passes.seconds for passes in self._begun)
            spent = sum(passes.cost for passes in self._begun)
            for passes in self._begun:
                passes.learn(record, outcomes, self._sizer.cost)
            self._sizer.learn(replace(record, seconds={**record.seconds, "propose": searching}), outcomes, spent)
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
        self._price_passes()
        self._sizer.forget()
        for part in self.parts:
            part.acceptance_rates.clear()
            part.engine.forget()

    def close(self) -> None:
        close_all(part.engine for part in self.parts)
