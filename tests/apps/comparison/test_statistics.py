"""Intervals that hold what they promise, checked by simulation and against the t interval."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from specdec import Result
from specdec.apps.comparison import Comparison
from specdec.apps.comparison.runs import Decoder, measure
from specdec.apps.comparison.statistics import speed_ratio
from specdec.decoding.stats import Stats
from specdec.numerics import Numerics
from tests.apps.comparison.made import TEXT, plan_of


class Machine:
    """A shared machine, by a clock of its own: it drifts, jitters by 4 %, and for a while now and then is half as fast.

    Strategies differ in speed by what they are given; prompts in the work that they are.
    """

    def __init__(self, rng: np.random.Generator, num_prompts: int, speeds: dict[str, float]) -> None:
        self.now = 0.0
        self._rng, self._speeds = rng, speeds
        self._work = rng.lognormal(0.0, 0.5, size=num_prompts)
        self._drift, self._spell = 1.0, 0  # slowness, and how many runs a slow spell still lasts
        self.decoders: dict[str, Decoder] = {name: partial(self._decode, name) for name in speeds}

    def clock(self) -> float:
        return self.now

    def _decode(self, name: str, prompt: int, seed: int) -> Result:
        noise, chance, jitter = self._rng.normal(0, 0.02), self._rng.random(), self._rng.lognormal(0.0, 0.04)
        self._drift *= math.exp(noise - 0.05 * math.log(self._drift))
        self._spell = self._spell - 1 if self._spell else 4 * (chance < 0.01)
        self.now += self._work[prompt] / self._speeds[name] * self._drift * jitter * (2 if self._spell else 1)
        return Result(TEXT, None, "length", Stats(accepted_lengths=[1] * len(TEXT)), seed, Numerics("fast"))


def compared(rng: np.random.Generator, num_prompts: int, speeds: dict[str, float]) -> Comparison:
    """Three repeats on such a machine, the whole way from the clock to the comparison."""
    machine = Machine(rng, num_prompts, speeds)
    plan = plan_of(list(speeds), num_prompts, repeats=3, seed=int(rng.integers(1 << 30)))
    return Comparison(plan, list(measure(plan, machine.decoders, clock=machine.clock)))


@pytest.mark.parametrize(
    ("num_prompts", "num_comparisons"), [(8, 300), (24, 100), pytest.param(8, 1000, marks=pytest.mark.nightly)]
)
def test_two_equal_strategies_have_a_winner_one_time_in_twenty(num_prompts: int, num_comparisons: int) -> None:
    rng = np.random.default_rng(num_prompts)
    speeds = {"plain": 1.0, "other": 1.0}
    winners = sum(compared(rng, num_prompts, speeds).winner is not None for _ in range(num_comparisons))
    print(f"\nwinners among {num_comparisons} comparisons of equals, {num_prompts} prompts: {winners}")
    assert abs(winners - num_comparisons / 20) <= 3 * (num_comparisons * 0.05 * 0.95) ** 0.5


def test_a_true_speed_up_lies_in_its_interval_and_wins() -> None:
    rng = np.random.default_rng(1)
    held = won = 0
    for _ in range(200):
        comparison = compared(rng, 12, {"plain": 1.0, "other": 1.3})
        ratio = comparison.speed_up("other")
        held += ratio.low <= 1.3 <= ratio.high
        won += comparison.winner == "other"
    assert held >= 180
    assert won >= 195


def test_the_interval_is_nearly_students_where_the_noise_is_normal() -> None:
    rng = np.random.default_rng(2)
    log_ratio = rng.normal(0.2, 0.05, size=40)
    tokens = np.full(40, 100.0)
    ratio = speed_ratio(np.stack([tokens, np.exp(-log_ratio)]), np.stack([tokens, np.ones(40)]))
    half = stats.t.ppf(0.975, 39) * stats.sem(log_ratio)
    assert math.log(ratio.value) == pytest.approx(log_ratio.mean(), abs=0.005)
    assert math.log(ratio.high) - math.log(ratio.low) == pytest.approx(2 * half, rel=0.15)


def test_few_prompts_give_no_interval() -> None:
    tokens, seconds = np.full(5, 10.0), np.arange(1.0, 6.0)
    ratio = speed_ratio(np.stack([tokens, seconds]), np.stack([tokens, 2 * seconds]))
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 0.0, math.inf)
    assert not ratio.is_faster
    assert not ratio.is_slower


def test_texts_of_other_lengths_are_compared_by_tokens_per_second() -> None:
    own, other = np.array([[50.0] * 6, [1.0] * 6]), np.array([[100.0] * 6, [4.0] * 6])
    assert speed_ratio(own, other).value == pytest.approx(2.0)
