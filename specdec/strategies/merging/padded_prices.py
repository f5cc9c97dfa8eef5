"""Prices of drafted steps where rows are padded: by c(T) at first, and then as steps turn out.

c(T) was measured for a single row, soon, and is the model's alone. Host work, masks, padding and several rows come on
top, and are learnt: a step of w nodes for each of b rows is taken to last f times what c(T) makes of a plain step's
time. The factor f is the lower median of what the last such steps of about as many nodes took over that, each beside a
plain one right before or behind it: machines are faster at one time than at another. A few steps tell one if they agree
on a surprise. Until steps of b rows have told, those of the nearest number of rows do.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from specdec.costs import Costs
from specdec.strategies.merging.prices import Prices, Table
from specdec.strategies.merging.rounds import PaddedRounds

_MOST, _FEWEST = 15, 3  # steps of a kind that count, and that have to be seen
_NEAR = 3  # steps before a plain one, and behind it, that are held against it
_FORGET = 128  # steps after which the oldest factors are dropped: what seems too dear to be tried is tried again
_SURPRISE = 1.5  # times what was believed
_REFRESH = 48  # steps after which a plain one is due: contexts grow, and machines change
_LEAST_FACTOR, _GREATEST_FACTOR = 0.75, 10.0
# Where passes are filled up, a plain one between drafted ones is as well, and doesn't tell what plain decoding takes.
_LEAST_FACTOR_FILLED = 1.0


class PaddedPrices(Prices):
    """Prices by the width that all rows are padded to; ``learns`` of False keeps to c(T)."""

    rounds = PaddedRounds

    def __init__(self, costs: Costs, widest: int, learns: bool = True) -> None:
        self._costs, self._widest, self._learns = costs, widest, learns
        least_factor = _LEAST_FACTOR_FILLED if costs.filled_to else _LEAST_FACTOR
        self._rows: defaultdict[int, _Seen] = defaultdict(lambda: _Seen(least_factor))
        self._tables: dict[int, Table] = {}

    def table(self, num_rows: int) -> Table:
        if num_rows not in self._tables:
            factors = self._factors(num_rows)
            costs = [0.0, self._rows[num_rows].cost_of_nothing]
            for width in range(2, self._widest + 1):
                factor = _nearest(factors, self._fed(num_rows, width))
                costs.append(max(costs[-1], factor * self._predicted(num_rows, width)))
            self._tables[num_rows] = Table.of(costs)
        return self._tables[num_rows]

    def plain(self, num_rows: int) -> float:
        """Seconds of a plain step of so many rows, by c(T)."""
        return self._costs.at(num_rows * self._costs.least_width)

    def needs_plain(self, num_rows: int) -> bool:
        return self._rows[num_rows].needs_plain

    def note(self, num_rows: int, place: int, seconds: float, searching: float, is_plain: bool) -> float | None:
        if not self._learns:
            return None
        seen, predicted = self._rows[num_rows], self._predicted(num_rows, place)
        width = self._fed(num_rows, place)
        factor = None
        if is_plain:
            seen.note_plain(seconds)
        else:
            factor = seen.note_drafted(width, seconds / predicted)
        if seen.believes_otherwise():
            self._tables.clear()  # those of other numbers of rows may go by this one's
        return None if factor is None else factor * predicted

    def _factors(self, num_rows: int) -> Mapping[int, float]:
        """The factors of the nearest number of rows that has any: rows come and go faster than prices are learnt.

        A row alone, for which c(T) was measured, neither goes by others' nor lends its own.
        """
        known = [number for number, seen in self._rows.items() if seen.factors and (number > 1) == (num_rows > 1)]
        nearest = min(known, key=lambda number: abs(number - num_rows), default=num_rows)
        return self._rows[nearest].factors

    def _fed(self, num_rows: int, width: int) -> int:
        """The nodes for each row once a pass is filled up."""
        return math.ceil(self._costs.filled(num_rows * max(width, self._costs.least_width)) / num_rows)

    def _predicted(self, num_rows: int, width: int) -> float:
        return self._costs.at(num_rows * max(width, self._costs.least_width)) / self.plain(num_rows)


class _Seen:
    """The times of steps of some number of rows."""

    def __init__(self, least_factor: float) -> None:
        self._least_factor = least_factor
        self._num_steps = self._num_since_plain = 0
        self.needs_plain = False
        self._plain: deque[float] = deque(maxlen=_NEAR)  # seconds of the last plain steps in a row
        self._before: deque[tuple[int, float]] = deque(maxlen=_NEAR)  # the last drafted steps, for the next plain one
        # Factors, by the power of two that the number of nodes is above.
        self._factors: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST))
        self._believed: dict[int, float] = {}

    @property
    def cost_of_nothing(self) -> float:
        """Plain steps that one takes in which the drafter found nothing."""
        return max(1.0, self._believed.get(1, 1.0))

    @property
    def factors(self) -> Mapping[int, float]:
        """The factors of drafted steps by their size; none for one in which nothing was found, which tells no price."""
        return {size: factor for size, factor in self._believed.items() if size > 1}

    def note_plain(self, seconds: float) -> None:
        """Note a step in which nothing was drafted."""
        if self._num_since_plain:
            self._plain.clear()
        self._plain.append(seconds)
        self._num_since_plain, self.needs_plain = 0, False

    def note_drafted(self, width: int, scaled: float) -> float | None:
        """Note another step, its seconds over c(T).

        Returns:
            The factor of the last few steps like it, since a single slow one is nobody's fault; None where no plain one
            was right before it.
        """
        self._num_since_plain += 1
        self._before.append((width, scaled))
        if self._num_since_plain > _NEAR or not self._plain:
            is_new = len(self._factors[width.bit_length()]) < _FEWEST
            self.needs_plain = is_new or self._num_since_plain >= _REFRESH
            return None
        plain = min(self._plain)
        for each, seconds in self._before:
            self._factors[each.bit_length()].append(seconds / plain)
        self._before.clear()
        return _typical([*self._factors[width.bit_length()]][-_FEWEST:])

    def believes_otherwise(self) -> bool:
        """Return True if prices are others since the last step, by more than a fiftieth."""
        self._num_steps += 1
        if self._num_steps % _FORGET == 0:
            for factors in self._factors.values():
                if factors:
                    factors.popleft()
        learnt = {
            size: min(max(self._least_factor, _typical(factors)), _GREATEST_FACTOR)
            for size, factors in self._factors.items()
            if len(factors) >= _FEWEST or (len(factors) > 1 and min(factors) > _SURPRISE)
        }
        is_same = learnt.keys() == self._believed.keys() and all(
            abs(learnt[size] - known) <= 0.02 * known for size, known in self._believed.items()
        )
        if not is_same:
            self._believed = learnt
        return not is_same


def _nearest(factors: Mapping[int, float], width: int) -> float:
    """The factor of a number of nodes: that of the nearest size that was seen, 1 where none was."""
    nearest = min(factors, key=lambda size: abs(size - width.bit_length()), default=None)
    return 1.0 if nearest is None else factors[nearest]


def _typical(factors: Collection[float]) -> float:
    """The lower median; of too few the least, since what delays a step is mostly another program."""
    return statistics.median_low(factors) if len(factors) >= _FEWEST else min(factors)
