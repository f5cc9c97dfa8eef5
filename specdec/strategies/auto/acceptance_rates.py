"""Acceptance rates of draft candidates, measured by bucket.

A source sorts its candidates into buckets by what it knows of them, such as the length of a match and the rank by
count. The acceptance rate of a bucket is an exponentially weighted mean over its candidates whose outcome is known:
those at each node of an accepted path, forwarded or not, since the token that the target emitted there is known.
"""

from collections.abc import Callable, Hashable, Mapping

_MEMORY = 0.995  # weight of earlier candidates after each new one
_MOST_AGREEMENTS = 1 << 14  # a source that makes new rates for each request would fill memory
_PRIOR_WEIGHT = 4.0  # candidates that a bucket's prior counts as


class AcceptanceRate:
    """The acceptance rate of a bucket; sources hold on to it, so that reading it costs no search.

    ``sources`` are the names of the sources that propose the bucket's candidates: one, or several that agree.
    """

    __slots__ = ("_contested", "sources", "value", "weight")

    def __init__(self, prior: float, *sources: str) -> None:
        self.value, self.weight, self.sources = prior, _PRIOR_WEIGHT, sources
        self._contested: AcceptanceRate | None = None

    def update(self, is_right: bool) -> None:
        """Count one more candidate of this bucket."""
        self.weight = weight = _MEMORY * self.weight + 1.0
        self.value += (is_right - self.value) / weight

    @property
    def contested(self) -> "AcceptanceRate":
        """The rate of the bucket's candidates at nodes where another source proposes other tokens."""
        if self._contested is None:
            self._contested = AcceptanceRate(self.value, *self.sources)
        return self._contested


class AcceptanceRates(dict[Hashable, AcceptanceRate]):
    """A source's acceptance rates by bucket, each initialised by the source's prior when it is first read."""

    def __init__(self, source: str, prior: Callable[[Hashable], float]) -> None:
        super().__init__()
        self._source, self._prior = source, prior

    def __missing__(self, bucket: Hashable) -> AcceptanceRate:
        rate = self[bucket] = AcceptanceRate(self._prior(bucket), self._source)
        return rate


class Agreements(dict[tuple[AcceptanceRate, AcceptanceRate], AcceptanceRate]):
    """Acceptance rates of candidates that two sources propose, by the two rates that they have alone.

    Such a candidate is more likely than either rate says, and one that the other source doesn't propose is less likely.
    Neither counts for a source's own buckets, which have the candidates of nodes where no other source has any. A third
    source can agree with an agreement. The prior is the larger of the two rates.
    """

    def merged(
        self, first: Mapping[int, AcceptanceRate], second: Mapping[int, AcceptanceRate]
    ) -> dict[int, AcceptanceRate]:
        """Return the candidates of two sources at one node, each with its rate beside the other source."""
        merged = {
            token: self[rate, second[token]] if token in second else rate.contested for token, rate in first.items()
        }
        merged.update((token, rate.contested) for token, rate in second.items() if token not in first)
        return merged

    def __missing__(self, both: tuple[AcceptanceRate, AcceptanceRate]) -> AcceptanceRate:
        if len(self) >= _MOST_AGREEMENTS:
            self.clear()
        first, second = both
        prior = max(first.value, second.value)
        rate = self[both] = AcceptanceRate(prior, *first.sources, *second.sources)
        return rate
