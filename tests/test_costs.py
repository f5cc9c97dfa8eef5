"""c(T): what is measured, by a clock of its own, and what is read off between."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specdec import Generator, ToyModel
from specdec.backends.toy import ToyBackend
from specdec.costs import Costs
from specdec.layout import Padding
from specdec.masks.dense import DenseCompiler
from specdec.runtime.probes.costs import Timer, measure_costs
from specdec.target import PassOutput, PlannedPass, Target
from tests.support import families


class Timed(Target):
    """A target whose passes take as long as they are said to, by a clock of its own; a prompt's take no time."""

    def __init__(self, seconds: Callable[[int], float], takes_trees: bool = True) -> None:
        super().__init__(ToyBackend.load(ToyModel(lambda _: [0.001] * 1000, 1000), DenseCompiler()), DenseCompiler())
        self.backend.shapes = replace(self.shapes, takes_trees=takes_trees)
        self.seconds, self.now, self.waited, self.passes = seconds, 0.0, 0.0, list[tuple[int, int]]()

    def forward(self, planned: PlannedPass) -> PassOutput:
        self.layout, answers = planned.layout, super().forward(planned)
        if not any(planned.num_prefix.values()):
            self.now += self.seconds(planned.layout.width)
            self.passes.append((planned.rows[0].length, planned.layout.width))
        return answers

    def costs(self, **options: Any) -> Costs:
        costs = measure_costs(self, timer=Timer(lambda: self.now, lambda: {"main": self.waited}), **options)
        assert not self.rows
        return costs


def test_between_sizes_and_beyond_them_costs_are_linear() -> None:
    costs = Costs((1, 4, 8), (1.0, 4.0, 6.0), 0.5)
    assert [costs.at(size) for size in (1, 2.5, 4, 6, 8, 12)] == [1.0, 2.5, 4.0, 5.0, 6.0, 8.0]
    assert costs.relative == (2.0, 8.0, 12.0)
    assert Costs((1, 4), (2.0, 1.9), 2.0).at(100) == 1.9  # noise is not a promise


def test_a_pass_that_is_filled_up_costs_what_the_full_one_does() -> None:
    costs = Costs((1, 9), (1.0, 9.0), 1.0, padding=Padding((1, 4, 8)))
    assert [costs.at(size) for size in (1, 2, 4, 4.5, 8, 9)] == [1.0, 4.0, 4.0, 8.0, 8.0, 9.0]


def test_where_passes_are_filled_up_those_of_one_size_are_timed_in_a_row() -> None:
    target = Timed(lambda size: 10.0 + size + 5.0 * (target.passes[-1:] != [(target.rows[0].length, size)]))
    target.backend.shapes = replace(target.shapes, padding=Padding((1, 3, 20)))
    assert target.costs(sizes=(1, 3, 20)) == Costs((1, 3, 20), (11.0, 13.0, 30.0), 11.0, padding=Padding((1, 3, 20)))


def test_the_least_time_of_each_size_is_what_it_costs() -> None:
    target = Timed(lambda size: (10 + size) * (100 if len(target.passes) % 5 == 0 else 1))
    assert target.costs(sizes=(1, 3, 20)) == Costs((1, 3, 20), (11.0, 13.0, 30.0), 11.0)


def slowed(disturbed: Callable[[int, int], float], plain: bool = False) -> Costs:
    """Measure passes of three sizes, slowed down by their number and size, and an ordinary plain one."""

    def seconds(size: int) -> float:
        return (10.0 + size) * disturbed(len(target.passes), size)

    target, other = Timed(seconds), Timed(float)

    def of_other(size: int) -> float:
        target.now += 5.0 * disturbed(len(target.passes), 0)
        return 0.0

    other.seconds = of_other
    return target.costs(sizes=(1, 3, 20), context=4, plain=other if plain else None)


@pytest.mark.parametrize("plain", [False, True])
def test_a_machine_that_slows_down_or_speeds_up_anywhere_changes_no_ratio(plain: bool) -> None:
    quiet = slowed(lambda *_: 1.0, plain)
    for begin in range(3, 50, 3):
        for early, late in ((1.0, 3.0), (3.0, 1.0)):
            costs = slowed(lambda number, _, place=begin: late if number >= place else early, plain)  # noqa: B023
            assert costs.relative == pytest.approx(quiet.relative), begin


@pytest.mark.parametrize("size", [0, 1, 3, 20])
def test_passes_of_one_size_that_are_slowed_in_some_rounds_change_no_cost(size: int) -> None:
    numbers = {"some": range(18, 32), "every other": range(0, 99, 2)}
    for hit in numbers.values():
        costs = slowed(lambda number, each, hit=hit: 5.0 if each == size and number // 4 in hit else 1.0, plain=True)
        assert costs == Costs((1, 3, 20), (11.0, 13.0, 30.0), 5.0)


@pytest.mark.parametrize("seed", range(8))
def test_bursts_change_no_ratio_while_they_are_fewer_than_quiet_passes(seed: int) -> None:
    rng = random.Random(seed)
    hit = [rng.random() < 0.1 for _ in range(200)]
    assert slowed(lambda number, _: 4.0 if hit[number] else 1.0) == Costs((1, 3, 20), (11.0, 13.0, 30.0), 11.0)


def test_costs_are_clear_where_the_rounds_agree_and_were_undisturbed() -> None:
    assert slowed(lambda *_: 1.0).is_clear
    assert not slowed(lambda number, size: 3.0 if size == 20 and number > 12 else 1.0).is_clear
    crowded = Timed(lambda size: setattr(crowded, "waited", crowded.waited + size) or size)  # type: ignore[func-returns-value]
    assert not crowded.costs(sizes=(1, 3)).is_clear


def test_rounds_in_which_others_had_the_processor_are_left_out_and_made_up_for() -> None:
    """In the first sixteen rounds passes over 20 nodes wait, and take longer than they would."""

    def seconds(size: int) -> float:
        waits = 7.0 if size == 20 and len(target.passes) < 70 else 0.0
        target.waited += waits
        return 10.0 + size + waits

    target = Timed(seconds)
    costs = target.costs(sizes=(1, 3, 20))
    assert costs == Costs((1, 3, 20), (11.0, 13.0, 30.0), 11.0)
    assert costs.is_clear
    assert len(target.passes) > 4 * 9 + 20


def test_an_ordinary_plain_step_is_measured_beside_them() -> None:
    target, plain = Timed(lambda size: 9.0 + size), Timed(float)
    plain.seconds = lambda size: setattr(target, "now", target.now + 4.0 + size) or 0.0  # type: ignore[func-returns-value]
    costs = target.costs(sizes=(1, 3), plain=plain)
    assert costs == Costs((1, 3), (10.0, 12.0), 5.0)
    assert costs.relative == (2.0, 2.4)


def test_passes_that_will_be_faster_are_not_timed() -> None:
    """The first three passes over several nodes, and the first five over one, take ten times as long."""
    seen = {True: 0, False: 0}

    def seconds(size: int) -> float:
        seen[size == 1] += 1
        target.backend.is_warm = seen[size == 1] > (5 if size == 1 else 3)
        return size if target.backend.is_warm else 10.0 * size

    target = Timed(seconds)
    assert target.costs(sizes=(1, 4, 8), repeats=0, context=16) == Costs((1, 4, 8), (1.0, 4.0, 8.0), 1.0)
    assert {length for length, _ in target.passes[:6]} == {16, 17}
    assert {length for length, _ in target.passes[-3:]} == {16}


def test_what_will_always_be_faster_later_is_waited_for_as_long_as_there_is_time() -> None:
    target = Timed(lambda size: size)
    target.backend.is_warm = False
    assert target.costs(sizes=(1, 4), repeats=0).sizes == (1, 4)
    assert len(target.passes) < 30
    assert Timed(lambda size: size).costs(sizes=(1, 4), repeats=0, seconds=3.0).sizes == (1, 4)


@pytest.mark.parametrize("max_positions", [None, 64])
def test_a_real_driver_takes_it(max_positions: int | None) -> None:
    compiler = DenseCompiler()
    model = ToyModel(lambda _: [0.25] * 4, 4, max_positions)
    costs = measure_costs(Target(ToyBackend.load(model, compiler), compiler), sizes=(1, 2, 8), repeats=1)
    assert costs.sizes == (1, 2, 8)
    assert all(seconds > 0 for seconds in costs.seconds)


def test_a_model_of_few_positions_is_measured_within_them() -> None:
    model = families.make("GPT2Config", {**families.GPT, "n_positions": 24})
    costs = Generator(model).costs()
    assert max(costs.sizes) == 33
    assert len(Generator(model).generate([1, 2], max_new_tokens=22).token_ids) == 22


def test_where_time_is_short_sizes_are_spread_and_larger_ones_count_in_proportion() -> None:
    target = Timed(lambda size: size)
    assert target.costs(seconds=40.0) == Costs((1, 8, 32, 128), (1.0, 8.0, 32.0, 128.0), 1.0)
    assert target.now < 4 * 40


@pytest.mark.parametrize("num_right", [0, 1, 3], ids=["the prompt's", "the first behind it", "a later one"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_row_is_left_open_where_a_pass_fails(
    error: type[BaseException], num_right: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Generator(ToyModel.random(6), proposer="autoregressive").open_target()
    forward, passes = target.forward, list[PlannedPass]()

    def failing(planned: PlannedPass) -> PassOutput:
        passes.append(planned)
        if len(passes) > num_right:
            raise error
        return forward(planned)

    monkeypatch.setattr(target, "forward", failing)  # in place of a model that does
    with pytest.raises(error):
        measure_costs(target, sizes=(1, 2), repeats=1)
    assert target.rows == ()
    assert target.backend.num_rows == 0


def test_passes_that_there_is_no_memory_for_count_in_proportion() -> None:
    def seconds(size: int) -> float:
        if size > 8:
            raise RuntimeError("out of memory")
        return size

    assert Timed(seconds).costs(sizes=(1, 8, 32)) == Costs((1, 8, 32), (1.0, 8.0, 32.0), 1.0)


def test_chains_are_as_long_as_what_they_stand_for() -> None:
    target = Timed(lambda size: size, takes_trees=False)
    target.costs(sizes=(1, 32, 128), context=16)
    assert {size for _, size in target.passes} == {1, 32, 128}
