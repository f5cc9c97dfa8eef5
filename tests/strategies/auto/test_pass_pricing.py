"""A head's passes in a merge, on a machine with a clock of its own: they run where they save time, and lose little."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pytest

from specdec import Budget, Drafter, Engine, Feedback, Request
from specdec.costs import Costs, StepCosts
from specdec.decoding.request_state import TokenView
from specdec.record import Outcome, StepRecord
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.acceptance_rates import AcceptanceRate, AcceptanceRates
from specdec.strategies.auto.drafter import Part
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.merged import MergedEngine
from specdec.strategies.auto.pass_pricing import PassPricing
from specdec.strategies.auto.sizer import SpeedupSizer
from specdec.strategies.auto.source import Candidate, Source
from specdec.strategies.base import Pays
from specdec.tree import ROOT

PASS = Costs((1, 9, 33), (1.0, 1.2, 1.9), 1.0)
COPIED, HEADS, NEW = 1, 2, 3  # the token that the cheap source drafts, the one that the head drafts, any other
DEPTH, LOSS = 4, 0.01


class CheapSource(Source):
    """Drafts one token after any path."""

    rate: AcceptanceRate

    def root(self) -> int:
        return 0

    def follow(self, state: int, token: int) -> int:
        return state + 1

    def candidates(self, state: int) -> Sequence[Candidate]:
        return [(COPIED, self.rate)]


class HeadSource(Source):
    """Drafts a chain, of as many tokens as passes have run."""

    rates: list[AcceptanceRate]
    num_levels = 0

    def root(self) -> int:
        return 0

    def follow(self, state: int, token: int) -> int | None:
        return state + 1 if token == HEADS else None

    def candidates(self, state: int) -> Sequence[Candidate]:
        return [(HEADS, self.rates[state])] if state < self.num_levels else []

    def receive(self, feedback: Feedback) -> None:
        self.num_levels = 0


@dataclass
class Head(Engine):
    """A head that knows how often its next token is right; ``cost`` plain steps a pass."""

    accuracy: Callable[[], float]
    cost: Callable[[], float]
    depth: int
    now: float = 0.0
    num_passes: int = 0
    rates: list[AcceptanceRate] = field(default_factory=lambda: [AcceptanceRate(0.5, "head") for _ in range(DEPTH)])

    def start(self, request: Request) -> Drafter:
        source = HeadSource(request)
        source.rates = self.rates
        return source

    def prepare_drafts(self, drafters: Sequence[Drafter], budgets: Sequence[Budget], pays: Pays) -> None:
        for level in range(self.depth):
            if not pays([self.accuracy() ** level] * len(drafters)):
                return
            self.now += self.cost()
            self.num_passes += 1
            for drafter in drafters:
                assert isinstance(drafter, HeadSource)
                drafter.num_levels += 1


@dataclass
class Machine:
    """Decodes texts in which each token is the cheap source's, the head's, or another."""

    copied: float = 0.2
    heads: float = 0.5
    cost: float = 0.1
    num_rows: int = 1
    is_priced: bool = True
    depth: int = DEPTH
    claimed: float | None = None  # the head's own probability of its tokens
    hiccups: float = 0.0  # share of passes that other programs delay
    seed: int = 0
    others: int = 0  # rows of another strategy
    kind: Literal["step", "prompt"] = "step"
    chunk: float = 0.0  # seconds of a step that a chunk of a prompt takes
    costs: Costs = PASS
    loss: float = LOSS

    def __post_init__(self) -> None:
        self.num_steps = self.num_tokens = self.num_vain = 0  # passes of the head in steps without a draft
        self.seconds, self.rngs = 0.0, [random.Random(self.seed + row) for row in range(self.num_rows)]
        noise = random.Random(1)
        self.head = Head(
            lambda: self.heads if self.claimed is None else self.claimed,
            lambda: self.cost * (50.0 if noise.random() < self.hiccups else 1.0),
            self.depth,
        )
        rate = AcceptanceRate(0.5, "cheap")

        def start(request: Request) -> Drafter:
            source = CheapSource(request)
            source.rate = rate
            return source

        names = {"cheap": Engine(start), "head": self.head}
        self.engine = MergedEngine(
            [Part(name, engine, AcceptanceRates(name, lambda _: 0.5)) for name, engine in names.items()],
            SpeedupSizer(StepCosts(self.costs, 40), self.loss),
            20,
            takes_trees=True,
            clock=lambda: self.head.now,
        )
        if not self.is_priced:
            self.engine._passes.clear()
        self.texts = [[0] for _ in range(self.num_rows)]
        random_stream = Randomness(0).stream("test")
        self.drafters = [
            self.engine.start(Request(TokenView(text), 1, 9, frozenset(), 0.0, random_stream)) for text in self.texts
        ]

    def run(self, num_steps: int) -> "Machine":
        for _ in range(num_steps):
            self._step()
        return self

    def write(self, num_tokens: int = 1000) -> float:
        """Return the seconds of a text of this length: the same one for each row, whatever is drafted."""
        while self.num_tokens < num_tokens * self.num_rows:
            self._step()
        return self.seconds * num_tokens * self.num_rows / self.num_tokens

    def _step(self) -> None:
        began, num_passes = self.head.now, self.head.num_passes
        trees = self.engine.propose_many(self.drafters, [Budget(20, 12, 999)] * self.num_rows)
        searching, outcomes = self.head.now - began, list[Outcome]()
        weights = self.copied, self.heads, 1.0 - self.copied - self.heads
        for drafter, text, tree, rng in zip(self.drafters, self.texts, trees, self.rngs, strict=True):
            assert not isinstance(tree, Exception)
            path, tokens = [ROOT], list[int]()
            while not tokens or (child := tree.child(path[-1], tokens[-1])) is not None:
                path += [child] if tokens else []
                tokens.append(rng.choices((COPIED, HEADS, NEW), weights)[0])
            text.extend(tokens)
            drafter.receive(feedback := Feedback(tree, tuple(path), tuple(tokens)))
            drafter.observe(feedback)
            outcomes.append(Outcome(object(), tree=tree, path=tuple(path), tokens=tuple(tokens)))  # type: ignore[arg-type]
        width = max(len(outcome.tree or ()) for outcome in outcomes)
        self.num_vain += self.head.num_passes - num_passes if width == 1 else 0
        num_rows = self.num_rows + self.others
        num_nodes = num_rows * width
        forward = self.costs.at(num_nodes) / self.costs.at(num_rows)
        seconds = {"propose": searching, "forward": forward + self.chunk}
        everyone = (*outcomes, *[outcome(NEW)] * self.others)
        self.engine.learn(StepRecord(self.kind, everyone, seconds, width), outcomes)
        self.num_steps += 1
        self.num_tokens += sum(len(outcome.tokens) for outcome in outcomes)
        self.seconds += sum(seconds.values())


def outcome(*tokens: int) -> Outcome:
    """A step that emitted these tokens."""
    return Outcome(object(), tokens=tokens)  # type: ignore[arg-type]


def growth_of(candidates: dict[tuple[int, ...], list[Candidate]]) -> Growth:
    """A tree that grows by these candidates after each path."""

    class Given(CheapSource):
        def root(self) -> Any:
            return ()

        def follow(self, state: Any, token: int) -> Any:
            return (*state, token)

        def candidates(self, state: Any) -> Sequence[Candidate]:
            return candidates.get(state, [])

    request = Request(TokenView([0]), 1, 9, frozenset(), 0.0, Randomness(0).stream("test"))
    return Growth({0: Given(request)}, request, Budget(9, 9, 99))


@cache
def fixed(
    copied: float, heads: float, cost: float, depth: int, num_rows: int = 1, seed: int = 0, num_tokens: int = 1000
) -> float:
    """Return the seconds of a text by a merge whose head always runs ``depth`` passes."""
    return Machine(copied, heads, cost, num_rows, False, depth, seed=seed).write(num_tokens)


def heads_by_turns() -> Iterator[Any]:
    """Yield how often either source is right, and a cost: by day two costs for each."""
    for i, (copied, heads) in enumerate([(0.0, 0.0), (0.0, 0.6), (0.3, 0.3), (0.5, 0.2)]):
        for j, cost in enumerate([0.02, 0.1, 0.3, 5.0]):
            yield pytest.param(copied, heads, cost, marks=[pytest.mark.nightly] if (i + j) % 2 else [])


@pytest.mark.parametrize(("copied", "heads", "cost"), [*heads_by_turns()])
def test_no_head_loses_more_than_its_share_and_good_ones_bring_what_the_best_number_of_passes_does(
    copied: float, heads: float, cost: float
) -> None:
    """Two first passes and two further ones run before their costs are known."""
    seconds = Machine(copied, heads, cost).write()
    without = fixed(copied, heads, 0.0, depth=0)
    best = min(fixed(copied, heads, cost, depth) for depth in range(DEPTH + 1))
    assert seconds <= (1 + LOSS) * without + 3.0 + 4 * cost
    assert seconds <= 1.03 * best + 3.0 + 4 * cost


def test_a_cheap_good_head_is_used_in_nearly_all_steps_and_brings_what_it_brings_without_pricing() -> None:
    priced, always = (Machine(heads=0.6, cost=0.005, is_priced=is_priced).run(400) for is_priced in (True, False))
    assert priced.head.num_passes > 0.95 * always.head.num_passes
    assert priced.num_tokens >= 0.97 * always.num_tokens


@pytest.mark.parametrize("seed", [10, 20])
@pytest.mark.parametrize(("heads", "cost"), [(0.7, 0.2), (0.6, 0.3)])
def test_after_misses_a_good_head_goes_on_since_its_passes_are_charged_once(
    heads: float, cost: float, seed: int
) -> None:
    """Seed 10 has misses in a row that would use up the drafts' balance too."""
    seconds = Machine(0.0, heads, cost, seed=seed).write(2000)
    best = min(fixed(0.0, heads, cost, depth, seed=seed, num_tokens=2000) for depth in range(DEPTH + 1))
    assert seconds <= 1.05 * best + 3.0


@pytest.mark.parametrize("shared", [{"others": 1}, {"kind": "prompt"}], ids=str)
def test_in_a_batch_shared_with_others_good_passes_run_and_those_that_win_nothing_are_few(shared: Any) -> None:
    for cost in (0.05, 0.3):
        bad = Machine(copied=0.0, heads=0.0, claimed=0.9, cost=cost, **shared).run(500)
        assert bad.head.num_passes <= (2.0 + LOSS * 500) / cost + DEPTH  # the first balance, and each step's
    assert Machine(copied=0.0, heads=0.6, cost=0.05, **shared).run(100).head.num_passes >= 200


def test_the_time_of_others_prompts_makes_no_pass_cheap() -> None:
    machine = Machine(copied=0.0, heads=0.6, cost=0.7).run(50)
    machine.kind, machine.chunk = "prompt", 20.0
    known = machine.head.num_passes
    assert machine.run(200).head.num_passes <= known + 12  # hundreds where passes seem cheap


def test_a_first_step_without_tokens_is_no_error() -> None:
    sizer = SpeedupSizer(StepCosts(PASS, 40), LOSS)
    priced = PassPricing(sizer.budget)
    for tokens in ((), (NEW,)):
        priced.begin([(growth_of({}), 1)], [0], sizer)
        assert priced.pays([1.0])
        priced.end()
        record = StepRecord("step", (outcome(*tokens),), {"forward": 1.0}, 1)
        priced.learn(record, record.outcomes, 1.0)


def test_an_expensive_head_is_hardly_asked() -> None:
    assert Machine(cost=1.5).run(500).head.num_passes <= 8


def test_a_head_that_is_surer_than_it_is_right_loses_no_more_than_its_share() -> None:
    seeds = range(4)
    seconds = sum(Machine(copied=0.3, heads=0.1, claimed=0.95, cost=0.15, seed=seed).write() for seed in seeds)
    without = sum(fixed(0.3, 0.1, 0.0, depth=0, seed=seed) for seed in seeds)
    assert seconds <= (1 + 2 * LOSS) * without + 4.0 * len(seeds)  # of plain decoding's time


def test_without_an_allowance_trials_end_once_the_first_balance_is_lost() -> None:
    seconds = Machine(copied=0.0, heads=0.0, cost=0.02, loss=0.0).write(1500)
    assert seconds <= 1.5 * fixed(0.0, 0.0, 0.0, depth=0) + 2.5


def test_requests_of_a_batch_share_a_pass() -> None:
    seconds = Machine(copied=0.1, heads=0.6, cost=0.15, num_rows=3).write()
    assert seconds <= 1.04 * min(fixed(0.1, 0.6, 0.15, depth, num_rows=3) for depth in range(DEPTH + 1)) + 3.0


def test_passes_that_other_programs_delay_now_and_then_go_on() -> None:
    undisturbed, priced = Machine().run(400), Machine(hiccups=0.1).run(400)
    assert priced.head.num_passes >= 0.9 * undisturbed.head.num_passes


@pytest.mark.parametrize("change", [{"cost": 1.5}, {"heads": 0.0}], ids=str)
def test_a_head_that_becomes_expensive_or_bad_is_hardly_asked_until_it_is_good_again(change: dict[str, float]) -> None:
    machine = Machine(copied=0.2, heads=0.6)
    before = {name: getattr(machine, name) for name in change}

    def num_passes(num_steps: int) -> int:
        known = machine.head.num_passes
        return machine.run(num_steps).head.num_passes - known

    num_passes(100)
    good = num_passes(100)
    for name, value in change.items():
        setattr(machine, name, value)
    num_passes(60)
    assert num_passes(300) < 0.1 * 3 * good
    for name, value in before.items():
        setattr(machine, name, value)
    num_passes(400)
    assert num_passes(100) > 0.7 * good


def test_a_head_that_is_not_priced_always_runs() -> None:
    machine = Machine(heads=0.5, cost=0.3, is_priced=False)
    assert machine.run(8).head.num_passes >= DEPTH * 6  # two plain steps, to compare with
    assert Machine(heads=0.5, cost=0.3).run(8).head.num_passes <= DEPTH * 3


def test_room_is_what_the_other_sources_leave() -> None:
    rates = {token: AcceptanceRate(rate, "cheap") for token, rate in ((5, 0.4), (6, 0.3), (7, 0.2))}
    growth = growth_of({(): list(rates.items()), (5,): [(8, AcceptanceRate(0.5, "cheap"))]})
    while growth.next_probability:
        growth.take()
    assert growth.tokens == [0, 5, 6, 7, 8]
    assert [growth.room(3), growth.room(5)] == pytest.approx([0.3, 0.1])
