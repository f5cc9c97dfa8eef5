"""Costs of drafts: c(T) at first, and then what steps took."""

import time
from unittest.mock import Mock

import pytest

from specdec import Generator, ToyModel
from specdec.costs import CostModel, Costs, StepCosts
from specdec.layout import Padding
from specdec.record import Outcome, StepRecord

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step

COSTS = Costs((1, 101), (2.0, 22.0), 2.0)  # each further node costs a tenth of the first


def learn(model: CostModel, num_rows: int, width: int, seconds: float) -> None:
    """Have a model learn from a step; one of a single node is plain."""
    outcomes = tuple(Outcome(ANY_REQUEST) for _ in range(num_rows))
    model.learn(StepRecord("step", outcomes, {"forward": seconds}, width=width), is_plain=width == 1)


class Steps:
    """A cost model that learns from steps of given times."""

    def __init__(self, learns: bool = True) -> None:
        self.model = StepCosts(COSTS, 20, learns)

    def take(self, num_rows: int, width: int, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            learn(self.model, num_rows, width, seconds)

    def at(self, num_rows: int, width: int) -> float:
        """The cost of a step, in plain ones."""
        return self.model.table(num_rows).costs[width]


def test_before_any_step_costs_are_those_measured_at_load() -> None:
    steps = Steps()
    assert [steps.at(1, width) for width in (1, 2, 11)] == pytest.approx([1.0, 1.1, 2.0])
    assert steps.at(4, 2) == pytest.approx((1 + 7 * 0.1) / (1 + 3 * 0.1))


def test_where_passes_are_filled_up_drafts_may_cost_less_than_was_measured() -> None:
    model = StepCosts(Costs((1, 9), (1.0, 2.0), 1.0, padding=Padding((1, 5, 9))), 8)
    assert model.table(1).costs[1:6] == pytest.approx([1.0, 1.5, 1.5, 1.5, 1.5])
    for width in (1, 1, 2, 4, 5, 1, 1, 2, 4):
        learn(model, 1, width, {1: 1.0}.get(width, 1.2))
    assert model.table(1).costs[1:6] == pytest.approx([1.0, 1.2, 1.2, 1.2, 1.2])


def test_sizes_that_are_filled_up_to_the_same_are_learnt_together() -> None:
    model = StepCosts(Costs((1, 9), (1.0, 2.0), 1.0, padding=Padding((1, 5, 9))), 8)
    for width in (1, 2, 3, 4):
        learn(model, 1, width, 1.5 if width == 1 else 4.5)
    assert model.table(1).costs[2:6] == pytest.approx([3.0] * 4)


def test_a_draft_that_is_filled_up_like_a_plain_step_costs_what_it_took_longer() -> None:
    """A plain pass may be fed alone nevertheless, which is faster."""
    model = StepCosts(Costs((5, 9), (1.0, 2.0), 1.0, padding=Padding((5, 9))), 8)
    for width in (1, 3, 3, 1):
        learn(model, 1, width, 1.0 if width == 1 else 1.2)
    assert model.table(1).costs[1:6] == pytest.approx([1.0, 1.2, 1.2, 1.2, 1.2])


def test_a_step_of_several_rows_that_takes_longer_is_more_expensive_for_them_alone() -> None:
    steps = Steps()
    steps.take(4, 1, 5.0, times=5)
    steps.take(4, 2, 10.0, times=5)
    assert steps.at(4, 2) == pytest.approx(2.0)
    assert steps.at(4, 1) == 1.0
    # Other sizes cost more than predicted by the same factor.
    assert steps.at(4, 3) == pytest.approx((2 / 1.7 * 1.3) * (1 + 11 * 0.1) / (1 + 3 * 0.1))
    assert steps.at(1, 2) == pytest.approx(1.1)


def test_a_number_of_rows_that_was_not_seen_goes_by_the_nearest_until_its_own_steps_tell() -> None:
    steps = Steps()
    for num_rows, seconds in ((4, 10.0), (16, 30.0)):
        steps.take(num_rows, 1, 5.0, times=5)
        steps.take(num_rows, 2, seconds, times=5)
    for num_rows, factor in ((5, 2 / 1.7 * 1.3), (15, 6 / 4.1 * 2.5)):
        assert steps.at(num_rows, 2) == pytest.approx(factor * (0.9 + 0.2 * num_rows) / (0.9 + 0.1 * num_rows))
    steps.take(5, 1, 5.0, times=5)
    steps.take(5, 2, 7.5, times=5)
    assert steps.at(5, 2) == pytest.approx(1.5)


def test_sizes_are_learnt_apart_and_no_larger_step_is_cheaper() -> None:
    steps = Steps()
    for _ in range(5):
        steps.take(1, 1, 2.0)
        steps.take(1, 2, 2.2)
        steps.take(1, 9, 2 * 1.8 * 2)
    costs = steps.model.table(1).costs
    assert (costs[2], costs[9]) == (pytest.approx(1.1), pytest.approx(3.6))
    assert list(costs) == sorted(costs)


def test_a_few_slow_steps_change_nothing() -> None:
    steps = Steps()
    for _ in range(6):
        steps.take(1, 1, 3.0, times=2)
        steps.take(1, 1, 1000.0)
        steps.take(1, 6, 9.0, times=2)
        steps.take(1, 6, 500.0)
    assert steps.at(1, 6) == pytest.approx(3.0)


def test_a_great_surprise_is_believed_when_it_comes_again_until_quicker_steps_are_seen() -> None:
    steps = Steps()
    steps.take(1, 1, 2.0, times=3)
    steps.take(1, 3, 2.4 * 6)
    assert steps.at(1, 3) == pytest.approx(1.2)
    steps.take(1, 3, 2.4 * 6)
    assert steps.at(1, 3) == pytest.approx(1.2 * 6)
    for _ in range(2):
        steps.take(1, 1, 2.0)
        steps.take(1, 3, 2.4, times=2)
    assert steps.at(1, 3) < 1.2 * 1.5


def test_steps_are_held_against_plain_ones_of_their_own_time() -> None:
    """The machine becomes four times as slow, and then eight times as fast, between plain steps far apart."""
    steps = Steps()
    for speed in (1.0, 4.0, 0.5):
        for _ in range(4):
            steps.take(1, 6, 4.0 * speed, times=30)
            steps.take(1, 1, 2.0 * speed)
            steps.take(1, 6, 4.0 * speed, times=30)
            assert steps.at(1, 6) == pytest.approx(2.0)


def test_a_few_new_steps_replace_what_was_learnt_long_ago() -> None:
    steps = Steps()
    for _ in range(9):
        steps.take(1, 1, 2.0)
        steps.take(1, 2, 2.2 * 30)
    assert steps.at(1, 2) == pytest.approx(33.0)
    steps.take(1, 1, 2.0, times=300)
    assert steps.at(1, 2) == pytest.approx(33.0)
    steps.take(1, 2, 2.2, times=3)
    assert steps.at(1, 2) == pytest.approx(1.1)


def test_plain_steps_are_asked_for_where_a_size_is_new_and_after_many_drafts() -> None:
    steps = Steps()
    needed = []
    for _ in range(300):
        needed.append(steps.model.needs_plain(1))
        steps.take(1, 1 if needed[-1] else 4, 1.0)
    assert [index for index, is_needed in enumerate(needed) if is_needed] == [1, 50, 99, 148, 197, 246, 295]


def test_without_a_clock_costs_are_those_measured_at_load() -> None:
    steps = Steps(learns=False)
    steps.take(1, 1, 1.0, times=200)
    steps.take(1, 4, 50.0, times=200)
    assert steps.at(1, 4) == pytest.approx(1.3)
    assert not steps.model.needs_plain(1)


def test_a_pause_between_steps_is_part_of_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    now, records = [0.0], list[StepRecord]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for _ in Generator(ToyModel.random(), proposer="jacobi").stream([1, 2], max_new_tokens=9, on_step=records.append):
        now[0] += 100.0  # what a reader does with it
    assert len(records) > 2
    assert [record.total_seconds for record in records] == [0.0] * len(records)
