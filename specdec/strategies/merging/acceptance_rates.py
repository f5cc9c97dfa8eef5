"""Calibrated rates: how often candidates of a kind were right, of late.

A source sorts its candidates into kinds by what it knows of them, such as the length of a match and the rank by count.
The rate of a kind is an exponentially weighted mean over the candidates of that kind whose outcome is known: those at
each node of an accepted path, fed or not, since the token that the target emitted there is known.
"""

from collections.abc import Callable, Hashable

_MEMORY = 0.995  # weight of what was seen, with each candidate that is seen since
_MOST_AGREEMENTS = 1 << 14  # a source that makes new rates for each request would fill memory
_PRIOR_WEIGHT = 4.0  # candidates that a kind's first guess counts as


class Rate:
    """The share of a kind's candidates that were right; an object of its own, so that reading it costs no search.

    ``sources`` are the names of those that name the kind's candidates: one, or several that agree.
    """

    __slots__ = ("sources", "value", "weight")

    def __init__(self, prior: float, *sources: str) -> None:
        self.value, self.weight, self.sources = prior, _PRIOR_WEIGHT, sources

    def __repr__(self) -> str:
        return f"Rate({self.value:.3f}, weight={self.weight:.1f})"

    def note(self, is_right: bool) -> None:
        """Count one more candidate of this kind."""
        self.weight = weight = _MEMORY * self.weight + 1.0
        self.value += (is_right - self.value) / weight


class Rates(dict[Hashable, Rate]):
    """The rates of a source's kinds, each begun with the source's own guess when it is first met."""

    def __init__(self, source: str, prior: Callable[[Hashable], float]) -> None:
        super().__init__()
        self._source, self._prior = source, prior

    def __missing__(self, kind: Hashable) -> Rate:
        rate = self[kind] = Rate(self._prior(kind), self._source)
        return rate


class Agreements(dict[tuple[Rate, Rate], Rate]):
    """The kinds of candidates that two sources name at once, by the kinds under which they name them.

    Such a candidate is likelier than either kind says, and counts for neither: a source's own kinds have those that no
    other source names. An agreement is a kind as well, so that a third source can agree with it. Begun with the greater
    of the two rates.
    """

    def __missing__(self, both: tuple[Rate, Rate]) -> Rate:
        if len(self) >= _MOST_AGREEMENTS:
            self.clear()
        first, second = both
        rate = self[both] = Rate(max(first.value, second.value), *first.sources, *second.sources)
        return rate
