"""Prices of drafted steps: their cost beyond a plain step, by c(T) at first, and then as steps turn out.

c(T) was measured for a single row and is the model's alone. Host work, masks, padding and several rows come on top, and
are learnt: a step of w nodes for each of b rows is taken to last f(b) times what c(T) makes of a plain step's time. The
factor f(b) is the median of what the last drafted steps of b rows took over that.

Rows are those of the strategy whose prices they are; what others add to a step is in plain and drafted ones alike.
"""

import statistics
from collections import defaultdict, deque

from specdec.costs import Costs

_MOST, _FEWEST = 15, 3  # steps of a kind that count, and that have to be seen
_REFRESH = 64  # steps after which a plain one is due: contexts grow
# Nothing makes a draft cheaper than c(T) says; a plain step that was slow for another reason would seem to.
_LEAST_FACTOR, _GREATEST_FACTOR = 1.0, 3.0


class Prices:
    """Prices by the number of rows and of nodes for each."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._plain: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))  # seconds
        self._beyond: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))  # factors
        self._num_since_plain: defaultdict[int, int] = defaultdict(int)
        self._factors: dict[int, float] = {}
        self._ratios: dict[tuple[int, int], float] = {}

    def at(self, num_rows: int, width: int) -> float:
        """Return the cost of a step of ``width`` nodes for each row beyond a plain step, in plain steps."""
        if width <= 1:
            return 0.0
        return self._predicted(num_rows, width) * self._factors.get(num_rows, 1.0) - 1

    def needs_plain(self, num_rows: int) -> bool:
        """Return True if there are too few recent plain steps of ``num_rows`` rows to compare drafted ones with."""
        return len(self._plain[num_rows]) < _FEWEST or self._num_since_plain[num_rows] >= _REFRESH

    def note(self, num_rows: int, width: int, seconds: float) -> None:
        """Learn what a step took; not called for a prompt's pass, which is like no other."""
        plain = self._plain[num_rows]
        if width == 1:
            plain.append(seconds)
            self._num_since_plain[num_rows] = 0
            return
        self._num_since_plain[num_rows] += 1
        if len(plain) >= _FEWEST:
            factors = self._beyond[num_rows]
            factors.append(seconds / (statistics.median(plain) * self._predicted(num_rows, width)))
            if len(factors) >= _FEWEST:
                self._factors[num_rows] = min(max(_LEAST_FACTOR, statistics.median(factors)), _GREATEST_FACTOR)

    def _predicted(self, num_rows: int, width: int) -> float:
        if (num_rows, width) not in self._ratios:
            self._ratios[num_rows, width] = self._costs.at(num_rows * width) / self._costs.at(num_rows)
        return self._ratios[num_rows, width]
