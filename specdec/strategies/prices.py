"""Prices of drafted steps: what they cost over a plain step, by c(T) at first, and then as steps turn out.

c(T) was measured for a single row, soon, and is the model's alone. Host work, masks, padding and several rows come on
top, and are learnt: a step of w nodes for each of b rows is taken to last f times what c(T) makes of a plain step's
time. The factor f is the median of what the last such steps of about as many nodes took over that, each beside a plain
one right before or behind it: machines are faster at one time than at another. A few steps tell one if they agree on a
surprise.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specdec.costs import Costs

_MOST, _FEWEST = 15, 3  # steps of a kind that count, and that have to be seen
_NEAR = 3  # steps before a plain one, and behind it, that are held against it
_FORGET = 8  # plain steps after which a factor is dropped: what seems too dear to be tried is tried again
_FIRST_PLAIN = 1  # drafted steps after which a plain one is due where too few were seen yet
_SURPRISE = 1.5  # times what was believed
_REFRESH = 48  # steps after which a plain one is due: contexts grow, and machines change
_LEAST_FACTOR, _GREATEST_FACTOR = 0.75, 10.0


@dataclass(frozen=True, slots=True)
class Table:
    """Costs of steps of some rows, in plain steps, by their number of nodes for each row.

    ``floors`` has the least that one node more costs, however many others come with it, and ``least`` the least of all.
    """

    costs: Sequence[float]
    floors: Sequence[float]
    least: float

    @classmethod
    def of(cls, costs: Sequence[float]) -> "Table":
        """The table of some costs."""
        floors, last = [0.0] * len(costs), len(costs) - 1
        for width in range(last):
            floors[width] = min((costs[more] - costs[width]) / (more - width) for more in range(width + 1, last + 1))
        floors[last] = float("inf")
        return cls(costs, floors, min(floors[1:]))


class Prices:
    """Tables by the number of rows; ``learns`` of False keeps to c(T)."""

    def __init__(self, costs: Costs, widest: int, learns: bool = True) -> None:
        self._costs, self._widest, self._learns = costs, widest, learns
        self._rows: defaultdict[int, _Seen] = defaultdict(_Seen)
        self._tables: dict[int, Table] = {}

    def table(self, num_rows: int) -> Table:
        """The costs of steps of so many rows."""
        if num_rows not in self._tables:
            factor_of = self._rows[num_rows].factors()
            costs = [0.0, 1.0]
            for width in range(2, self._widest + 1):
                costs.append(max(costs[-1], factor_of(width) * self._predicted(num_rows, width)))
            self._tables[num_rows] = Table.of(costs)
        return self._tables[num_rows]

    def needs_plain(self, num_rows: int) -> bool:
        """Return True if there is no recent plain step of ``num_rows`` rows to compare drafted ones with."""
        seen = self._rows[num_rows]
        return seen.num_since_plain >= (_REFRESH if seen.knows_plain else _FIRST_PLAIN)

    def note(self, num_rows: int, width: int, seconds: float) -> float | None:
        """Learn what a step took; not called for a prompt's pass, which is like no other.

        Returns:
            What steps like it took of late, in plain ones; None where that isn't known.
        """
        if not self._learns:
            return None
        seen, predicted = self._rows[num_rows], self._predicted(num_rows, width)
        if seen.note(width, seconds, predicted):
            self._tables.pop(num_rows, None)
        factor = seen.latest_factor(width)
        return None if factor is None else factor * predicted

    def _predicted(self, num_rows: int, width: int) -> float:
        return self._costs.at(num_rows * width) / self._costs.at(num_rows)


class _Seen:
    """What steps of some number of rows took."""

    def __init__(self) -> None:
        self.num_since_plain = self._num_plain = 0
        self._plain: deque[float] = deque(maxlen=_NEAR)  # seconds of the last plain steps in a row
        self._before: deque[tuple[int, float]] = deque(maxlen=_NEAR)  # the last drafted steps, for the next plain one
        # Factors, by the power of two that the number of nodes is above.
        self._factors: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))
        self._believed: dict[int, float] = {}

    @property
    def knows_plain(self) -> bool:
        """True if enough plain steps were seen to compare drafted ones with."""
        return self._num_plain >= _FEWEST

    def latest_factor(self, width: int) -> float | None:
        """The factor of the last few steps of about as many nodes: a single slow step is nobody's fault."""
        factors = self._factors[width.bit_length()]
        return _typical(list(factors)[-_FEWEST:]) if factors else None

    def note(self, width: int, seconds: float, predicted: float) -> bool:
        """Note a step; return True if prices are others now, by more than a fiftieth."""
        if width == 1:
            self._note_plain(seconds)
        else:
            self._note_drafted(width, seconds / predicted)
        learnt = {
            size: min(max(_LEAST_FACTOR, _typical(factors)), _GREATEST_FACTOR)
            for size, factors in self._factors.items()
            if len(factors) >= _FEWEST or (factors and min(factors) > _SURPRISE)
        }
        is_same = learnt.keys() == self._believed.keys() and all(
            abs(learnt[size] - known) <= 0.02 * known for size, known in self._believed.items()
        )
        if not is_same:
            self._believed = learnt
        return not is_same

    def _note_plain(self, seconds: float) -> None:
        if self.num_since_plain:
            self._plain.clear()
        self._plain.append(seconds)
        self.num_since_plain, self._num_plain = 0, self._num_plain + 1
        if self._num_plain % _FORGET == 0:
            for factors in self._factors.values():
                if factors:
                    factors.popleft()

    def _note_drafted(self, width: int, scaled: float) -> None:
        self.num_since_plain += 1
        self._before.append((width, scaled))
        if self.num_since_plain <= _NEAR and self._plain:
            plain = min(self._plain)
            for each, seconds in self._before:
                self._factors[each.bit_length()].append(seconds / plain)
            self._before.clear()

    def factors(self) -> Callable[[int], float]:
        """The factor of a number of nodes: that of the nearest size that was seen, 1 where none was."""
        believed = self._believed

        def factor(width: int) -> float:
            nearest = min(believed, key=lambda size: abs(size - width.bit_length()), default=None)
            return 1.0 if nearest is None else believed[nearest]

        return factor


def _typical(factors: Collection[float]) -> float:
    """The median; of too few the least, since what delays a step is mostly another program."""
    return statistics.median(factors) if len(factors) >= _FEWEST else min(factors)
