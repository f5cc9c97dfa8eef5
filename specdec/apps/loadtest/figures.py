"""The figures of a load test: throughput, goodput and percentiles of latencies."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specdec.apps.loadtest.client import Answered
from specdec.apps.loadtest.run import FinishedLoad

PERCENTILES = 50, 90, 99
Percentiles = tuple[float, ...]  # of times in seconds, by PERCENTILES; empty without any time


@dataclass(frozen=True, slots=True)
class Goal:
    """The largest latencies, in seconds, of an answer that counts for goodput."""

    first: float
    per_token: float

    def is_met(self, answer: Answered) -> bool:
        """Return True for an answer within the times."""
        return answer.first <= self.first and (answer.per_token or 0.0) <= self.per_token


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one load.

    Attributes:
        tokens_per_second, requests_per_second: of successful answers, over the whole run.
        goodput: requests per second that met the goal.
        first, per_token, gaps, whole: times to the first text, per later token, between parts, to the end.
        failures: the reasons for failures, and their numbers.
    """

    load: str
    rate: float | None
    streams: int | None
    num_requests: int
    num_succeeded: int
    seconds: float
    tokens_per_second: float
    requests_per_second: float
    goodput: float
    first: Percentiles
    per_token: Percentiles
    gaps: Percentiles
    whole: Percentiles
    failures: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return {name: _named(each) if isinstance(each, tuple) else each for name, each in asdict(self).items()}


def summary_of(ran: FinishedLoad, goal: Goal) -> Summary:
    """Return the figures of a finished load."""
    good = [each for each in ran.answers if each.has_succeeded]
    kept = list(filter(goal.is_met, good))
    failed = Counter(each.error or "no text" for each in ran.answers if not each.has_succeeded)
    return Summary(
        load=str(ran.load),
        rate=ran.load.rate,
        streams=ran.load.streams,
        num_requests=len(ran.answers),
        num_succeeded=len(good),
        seconds=ran.seconds,
        tokens_per_second=sum(each.num_tokens for each in good) / ran.seconds,
        requests_per_second=len(good) / ran.seconds,
        goodput=len(kept) / ran.seconds,
        first=_percentiles([each.first for each in good]),
        per_token=_percentiles([each.per_token for each in good if each.per_token is not None]),
        gaps=_percentiles([gap for each in good for gap in each.gaps]),
        whole=_percentiles([each.seconds for each in good]),
        failures=dict(failed),
    )


def _percentiles(seconds: Sequence[float]) -> Percentiles:
    return tuple(float(np.percentile(seconds, place)) for place in PERCENTILES) if seconds else ()


def _named(percentiles: Percentiles) -> dict[str, float] | None:
    """Return percentiles by name, such as "p50"; None without any time."""
    return {f"p{place}": round(each, 5) for place, each in zip(PERCENTILES, percentiles, strict=False)} or None
