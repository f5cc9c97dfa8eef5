"""Speed ratios of paired runs, with bootstrap intervals."""

import math
from dataclasses import dataclass

import numpy as np

from specdec.machine.extras import needs

FEWEST_PROMPTS = 6  # with fewer, even the span of all resamples covers the true ratio in less than 95 % of cases
_LEVEL = 0.95
_NUM_RESAMPLES = 4999


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of speeds and its 95 % interval, which is (0, inf) with too few prompts."""

    value: float
    low: float
    high: float

    @property
    def is_faster(self) -> bool:
        """True if the whole interval lies above 1."""
        return self.low > 1.0

    @property
    def is_slower(self) -> bool:
        """True if the whole interval lies below 1."""
        return self.high < 1.0

    def __str__(self) -> str:
        return f"{self.value:.2f}" if math.isinf(self.high) else f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def speed_ratio(own: np.ndarray, other: np.ndarray, seed: int = 0) -> Ratio:
    """The speed of ``own`` over that of ``other``, over all prompts together.

    The interval is the expanded percentile bootstrap over prompts, paired. The percentiles are widened by the ratio of
    a t interval to a normal one, since plain percentiles are too narrow for small samples (Hesterberg 2015, "What
    Teachers Should Know About the Bootstrap", The American Statistician 69, section 5.3).

    Args:
        own, other: tokens and seconds by prompt, shape ``(2, prompts)``; column i of both is the same prompt.
        seed: seed of the resamples.
    """
    stats = needs("scipy.stats", "compare", "a comparison")
    value = speed_value(own, other)
    num_prompts = own.shape[1]
    if num_prompts < FEWEST_PROMPTS:
        return Ratio(value, 0.0, math.inf)
    if np.array_equal(own, other):
        return Ratio(value, value, value)
    tail = (1 - _LEVEL) / 2
    wider = stats.t.ppf(tail, num_prompts - 1) * math.sqrt(num_prompts / (num_prompts - 1))
    interval = stats.bootstrap(
        (*own, *other),
        _ratio,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=1 - 2 * stats.norm.cdf(wider),
        n_resamples=_NUM_RESAMPLES,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Ratio(value, float(interval.low), float(interval.high))


def speed_value(own: np.ndarray, other: np.ndarray) -> float:
    """``speed_ratio`` without the interval."""
    return float(_ratio(*own, *other))


def _ratio(
    own_tokens: np.ndarray, own_seconds: np.ndarray, other_tokens: np.ndarray, other_seconds: np.ndarray, axis: int = -1
) -> np.ndarray:
    """Tokens per second over tokens per second."""
    own = own_tokens.sum(axis) / own_seconds.sum(axis)
    other = other_tokens.sum(axis) / other_seconds.sum(axis)
    ratio: np.ndarray = own / other
    return ratio
