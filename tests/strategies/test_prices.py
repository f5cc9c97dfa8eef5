"""Prices of drafts: c(T) at first, and then what steps took."""

import time

import pytest

from specdec import Generator, ToyModel
from specdec.costs import Costs
from specdec.decoding.record import StepRecord
from specdec.strategies.prices import Prices

COSTS = Costs((1, 101), (2.0, 22.0), 2.0)  # each further node costs a tenth of the first


class Steps:
    """Prices, told of steps that take as long as is said."""

    def __init__(self) -> None:
        self.prices = Prices(COSTS)

    def take(self, num_rows: int, width: int, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            self.prices.note(num_rows, width, seconds)


def test_before_anything_was_seen_a_price_is_what_the_costs_say() -> None:
    prices = Prices(COSTS)
    assert [prices.at(1, width) for width in (1, 2, 11)] == pytest.approx([0.0, 0.1, 1.0])
    assert prices.at(4, 2) == pytest.approx((1 + 7 * 0.1) / (1 + 3 * 0.1) - 1)


def test_a_step_of_several_rows_that_takes_longer_is_dearer_for_them_alone() -> None:
    steps = Steps()
    steps.take(4, 1, 5.0, times=5)
    steps.take(4, 2, 10.0, times=5)
    assert steps.prices.at(4, 2) == pytest.approx(1.0)  # it takes twice as long
    assert steps.prices.at(4, 1) == 0.0
    # Other sizes are so many times dearer than the costs say.
    assert steps.prices.at(4, 3) == pytest.approx(2 * (1 + 11 * 0.1) / (1 + 7 * 0.1) - 1)
    assert steps.prices.at(1, 2) == pytest.approx(0.1)


def test_a_few_slow_steps_change_nothing() -> None:
    steps = Steps()
    for _ in range(6):
        steps.take(1, 1, 3.0, times=2)
        steps.take(1, 1, 1000.0)
        steps.take(1, 6, 9.0, times=2)
        steps.take(1, 6, 500.0)
    assert steps.prices.at(1, 6) == pytest.approx(2.0)


def test_a_pause_between_steps_is_part_of_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    now, records = [0.0], list[StepRecord]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for _ in Generator(ToyModel.random(), proposer="jacobi").stream([1, 2], max_new_tokens=9, on_step=records.append):
        now[0] += 100.0  # what a reader does with it
    assert len(records) > 2
    assert [record.total_seconds for record in records] == [0.0] * len(records)


def test_no_price_is_below_what_the_costs_say() -> None:
    steps = Steps()
    steps.take(1, 1, 9.0, times=5)
    steps.take(1, 2, 1.0, times=5)
    assert steps.prices.at(1, 2) == pytest.approx(0.1)


def test_plain_steps_are_asked_for_at_first_and_again_after_many_drafts() -> None:
    steps = Steps()
    needed = []
    for _ in range(100):
        needed.append(steps.prices.needs_plain(1))
        steps.take(1, 1 if needed[-1] else 4, 1.0)
    assert [index for index, is_needed in enumerate(needed) if is_needed] == [0, 1, 2, 67]


def test_what_was_seen_once_is_not_believed_without_bounds() -> None:
    steps = Steps()
    steps.take(1, 1, 1.0, times=3)
    steps.take(1, 2, 1000.0, times=3)
    assert steps.prices.at(1, 2) == pytest.approx(3 * 1.1 - 1)
