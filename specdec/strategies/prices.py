"""Prices of drafted steps: what they cost over a plain step, by c(T) at first, and then as steps turn out.

c(T) was measured for a single row and is the model's alone. Host work, masks, padding and several rows come on top, and
are learnt: a step of w nodes for each of b rows is taken to last f(b) times what c(T) makes of a plain step's time. The
factor f(b) is the median of what the last drafted steps of b rows took over that.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.costs import Costs

_MOST, _FEWEST = 15, 3  # steps of a kind that count, and that have to be seen
_FORGET = 8  # plain steps after which a factor is dropped: what seems too dear to be tried is tried again
_REFRESH = 128  # steps after which a plain one is due: contexts grow
# Nothing makes a draft cheaper than c(T) says; a plain step that was slow for another reason would seem to.
_LEAST_FACTOR, _GREATEST_FACTOR = 1.0, 3.0
_NUM_CLASSES = 50  # of factors, in a doubling: a table is made for each that comes up


@dataclass(frozen=True, slots=True)
class Table:
    """Costs of steps of some rows, in plain steps, by their number of nodes for each row.

    ``floors`` has the least that one node more costs, however many others come with it.
    """

    costs: Sequence[float]
    floors: Sequence[float]

    @classmethod
    def of(cls, costs: Sequence[float]) -> "Table":
        """The table of some costs."""
        floors, last = [0.0] * len(costs), len(costs) - 1
        for width in range(last):
            floors[width] = min((costs[more] - costs[width]) / (more - width) for more in range(width + 1, last + 1))
        floors[last] = float("inf")
        return cls(costs, floors)


class Prices:
    """Tables by the number of rows; ``learns`` of False keeps to c(T)."""

    def __init__(self, costs: Costs, widest: int, learns: bool = True) -> None:
        self._costs, self._widest, self._learns = costs, widest, learns
        self._plain: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))  # seconds
        self._beyond: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))  # factors
        self._num_since_plain: defaultdict[int, int] = defaultdict(int)
        self._num_plain: defaultdict[int, int] = defaultdict(int)
        self._factors: dict[int, float] = {}
        self._tables: dict[tuple[int, int], Table] = {}

    def table(self, num_rows: int) -> Table:
        """The costs of steps of so many rows."""
        step = round(self._factors.get(num_rows, 1.0) * _NUM_CLASSES)
        if (num_rows, step) not in self._tables:
            factor = step / _NUM_CLASSES
            beyond = [factor * self._predicted(num_rows, width) for width in range(2, self._widest + 1)]
            self._tables[num_rows, step] = Table.of([0.0, 1.0, *beyond])
        return self._tables[num_rows, step]

    def needs_plain(self, num_rows: int) -> bool:
        """Return True if there is no recent plain step of ``num_rows`` rows to compare drafted ones with."""
        return self._num_since_plain[num_rows] >= _REFRESH

    def note(self, num_rows: int, width: int, seconds: float) -> None:
        """Learn what a step took; not called for a prompt's pass, which is like no other."""
        if not self._learns:
            return
        plain = self._plain[num_rows]
        factors = self._beyond[num_rows]
        if width == 1:
            plain.append(seconds)
            self._num_since_plain[num_rows] = 0
            self._num_plain[num_rows] += 1
            if factors and self._num_plain[num_rows] % _FORGET == 0:
                factors.popleft()
        else:
            self._num_since_plain[num_rows] += 1
            if len(plain) >= _FEWEST:
                factors.append(seconds / (statistics.median(plain) * self._predicted(num_rows, width)))
        learnt = statistics.median(factors) if len(factors) >= _FEWEST else 1.0
        self._factors[num_rows] = min(max(_LEAST_FACTOR, learnt), _GREATEST_FACTOR)

    def _predicted(self, num_rows: int, width: int) -> float:
        return self._costs.at(num_rows * width) / self._costs.at(num_rows)
