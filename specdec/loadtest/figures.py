"""The figures of a load test: throughput, goodput and percentiles of latencies."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.loadtest.client import Answered
from specdec.loadtest.run import FinishedLoad

PERCENTILES = 50, 90, 99


@dataclass(frozen=True, slots=True)
class Goal:
    """The largest latencies, in seconds, of an answer that counts for goodput."""

    first: float
    per_token: float

    def is_met(self, answer: Answered) -> bool:
        """Return True for an answer within the times."""
        return answer.first <= self.first and (answer.per_token or 0.0) <= self.per_token


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles, in seconds; None without any value."""

    values: tuple[float, ...] | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Percentiles":
        """Return the percentiles of some times."""
        return cls(tuple(float(np.percentile(seconds, place)) for place in PERCENTILES) if seconds else None)

    def as_dict(self) -> dict[str, float] | None:
        """Return the percentiles by name, such as "p50"."""
        if self.values is None:
            return None
        return {f"p{place}": round(value, 5) for place, value in zip(PERCENTILES, self.values, strict=True)}


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
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value.as_dict() if isinstance(value, Percentiles) else value for name, value in found.items()}


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
        first=Percentiles.of([each.first for each in good]),
        per_token=Percentiles.of([each.per_token for each in good if each.per_token is not None]),
        gaps=Percentiles.of([gap for each in good for gap in each.gaps]),
        whole=Percentiles.of([each.seconds for each in good]),
        failures=dict(failed),
    )
