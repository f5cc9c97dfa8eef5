"""One draft from several strategies: the likeliest candidates of all, as many as pay.

A node pays while its chance exceeds lambda = tau x dc(T) / c(T): what it costs more than the pass without it, in tokens
(``prices.py``). The same rule sizes the draft of a request alone and of a batch, on any device.

An account keeps what drafts may lose. Each step pays in a small share of itself; a draft takes out what its pass costs
beyond a plain one and pays in the tokens that it brought. No draft is fed that the account couldn't bear to lose whole.

Strategies that only give trees take part by their nodes' rates, by depth and rank. Their window, if they have one, goes
along whole, while that pays (``windows.py``). Sampled draws are chosen from like all others, by what was drawn, and so
lose their laws: ``match`` decides about such a merge under rules that read q.
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
from specdec.strategies.merging.budget import Account
from specdec.strategies.merging.drafter import MergedDrafter, Part
from specdec.strategies.merging.packed_prices import PackedPrices
from specdec.strategies.merging.padded_prices import PaddedPrices
from specdec.strategies.merging.prices import Prices
from specdec.strategies.merging.source import Source
from specdec.strategies.merging.tree_source import TreeSource
from specdec.tree import Budget, DraftTree

_NOMINAL = Costs(sizes=(1, 65), seconds=(1.0, 1.8), plain=1.0)  # where a measured one would decide about the text


class MergedProposer(Proposer):
    """The likeliest candidates of several strategies in one tree."""

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
                    assert not host.takes_trees, "windows are priced by the widest row"
                    prices = PackedPrices(host.costs(), self.num_nodes, learns=self.clock)
                else:
                    prices = PaddedPrices(host.costs(), 2 * self.num_nodes, learns=self.clock)
                engine: Engine = MergedEngine(parts, Account(prices, self.loss), self.num_nodes, host.takes_trees)
            else:
                engine = FreshEngine(parts, self.num_nodes, host.takes_trees)
            failing.pop_all()
        return engine


class MergedEngine(Engine):
    """Grows the drafts of all requests to the size that pays for them together."""

    def __init__(self, parts: Sequence[Part], account: Account, num_nodes: int, takes_trees: bool) -> None:
        self.parts, self._account = parts, account
        self.agreements = Agreements()
        self._failed: dict[int, Exception] = {}  # by part, why it takes no part any more
        self._num_nodes, self._takes_trees = num_nodes, takes_trees

    def start(self, request: Request) -> Drafter:
        return MergedDrafter(request, self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        merged = [drafter for drafter in drafters if isinstance(drafter, MergedDrafter)]
        assert len(merged) == len(drafters), "an engine is given the drafters that it started"
        for drafter in merged:
            drafter.trees = {}
            for index, error in self._failed.items():
                drafter.leave_out_at(index, error)
        if self._account.rests(len(merged)):
            return [drafter.rest() for drafter in merged]
        for index, part in enumerate(self.parts):
            self._ask(index, part, merged, budgets)
        least_chance = self._account.least_chance(len(merged))
        growths = [
            drafter.begin(budget, self._takes_trees, least_chance)
            for drafter, budget in zip(merged, budgets, strict=True)
        ]
        limits = [
            min(self._num_nodes, budget.num_nodes - drafter.num_extra)
            for drafter, budget in zip(merged, budgets, strict=True)
        ]
        has_extra = any(drafter.num_extra for drafter in merged)
        num_unearning = max(drafter.num_unearning for drafter in merged) if has_extra else None
        sizes, feeds_extra = self._account.grow(growths, limits, num_unearning)
        return [drafter.tree(size, feeds_extra) for drafter, size in zip(merged, sizes, strict=True)]

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
        self._account.learn(record, outcomes)
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
        self._account.forget()
        for part in self.parts:
            part.rates.clear()
            part.engine.forget()

    def close(self) -> None:
        _close(self.parts)


class FreshEngine(Engine):
    """Begins each request with nothing learnt and fixed costs: for rules under which the text depends on the drafts.

    Windows never rest there: resting is learnt by a clock.
    """

    def __init__(self, parts: Sequence[Part], num_nodes: int, takes_trees: bool) -> None:
        self._parts, self._num_nodes, self._takes_trees = parts, num_nodes, takes_trees

    def start(self, request: Request) -> Drafter:
        parts = [replace(part, rates=Rates(part.name, TreeSource.prior)) for part in self._parts]
        account = Account(PaddedPrices(_NOMINAL, 2 * self._num_nodes, learns=False), loss=math.inf)
        return MergedEngine(parts, account, self._num_nodes, self._takes_trees).start(request)

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
