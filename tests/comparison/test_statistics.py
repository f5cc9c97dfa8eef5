"""Intervals that hold what they promise, checked by simulation and against the t interval."""

import math

import numpy as np
import pytest
from scipy import stats

from specdec.comparison import Comparison
from specdec.comparison.statistics import speed_ratio
from tests.comparison.made import plan_of, runs_of


def noisy_seconds(rng: np.random.Generator, num_prompts: int, repeats: int) -> np.ndarray:
    """Of two equal strategies, shape (2, prompts, repeats): prompts differ, the machine drifts and now and then stalls.

    Drift is shared by runs that follow one another; jitter is 4 %; one run in twenty takes up to half as long again.
    """
    work = rng.lognormal(0.0, 0.5, size=(1, num_prompts, 1))
    drift = np.exp(np.cumsum(rng.normal(0, 0.02, size=(1, num_prompts * repeats)), axis=1)).reshape(1, -1, repeats)
    jitter = rng.lognormal(0.0, 0.04, size=(2, num_prompts, repeats))
    stalls = 1 + (rng.random((2, num_prompts, repeats)) < 0.05) * rng.uniform(0, 0.5, (2, num_prompts, repeats))
    seconds: np.ndarray = work * drift * jitter * stalls
    return seconds


@pytest.mark.parametrize(("num_prompts", "repeats"), [(8, 3), (24, 3)])
def test_two_equal_strategies_have_a_winner_one_time_in_twenty(num_prompts: int, repeats: int) -> None:
    """The whole way from runs to the winner, 1,000 times with each number of prompts."""
    rng = np.random.default_rng(num_prompts)
    plan = plan_of(["plain", "other"], num_prompts, repeats)
    winners = 0
    for _ in range(1000):
        seconds = dict(zip(plan.strategies, noisy_seconds(rng, num_prompts, repeats), strict=True))
        made = runs_of(plan, lambda name, prompt, repeat: float(seconds[name][prompt, repeat]))  # noqa: B023
        winners += Comparison(plan, made).winner is not None
    print(f"\nwinners among 1,000 comparisons of equals, {num_prompts} prompts: {winners}")
    assert 30 <= winners <= 70


def test_a_true_speed_up_lies_in_its_interval_and_wins() -> None:
    rng = np.random.default_rng(1)
    held = won = 0
    for _ in range(200):
        plain, other = noisy_seconds(rng, 12, 3).mean(axis=-1)
        tokens = np.full(12, 64.0)
        ratio = speed_ratio(np.stack([tokens, other / 1.3]), np.stack([tokens, plain]))
        held += ratio.low <= 1.3 <= ratio.high
        won += ratio.is_faster
    assert held >= 180
    assert won == 200


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
