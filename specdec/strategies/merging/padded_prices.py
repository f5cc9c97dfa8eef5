"""The cost model of a backend that pads rows to the widest: c(T) at first, and then what steps take.

c(T) is measured at load for a single row, quickly, and covers the model alone. Host work, masks, padding and several
rows come on top, and a busy machine may have spoilt it. So costs are learnt from steps: drafted steps are timed near
plain ones, since a machine's speed changes, and the cost of a size is the lower quartile of the drafted steps' times
over that of the plain ones', since other programs only ever delay a step.

Between the sizes that were seen, and down to a plain step, costs are linear, so a large draft that is expensive says
little about a small one. Beyond the largest size c(T) has the shape. Numbers of rows without steps of their own go by
the nearest that has some.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from specdec.costs import Costs
from specdec.strategies.merging.prices import Prices, Table
from specdec.strategies.merging.rounds import PaddedRounds

_MOST, _FEWEST = 30, 3  # steps of a size that count, and that are needed
_NEAR = 3  # steps before and after a plain one that are compared with it
_MEMORY = 256  # steps: older ones count only where there are too few
_SURPRISE = 1.5  # plain steps: two steps are enough where both cost more
_REFRESH = 48  # steps after which a plain one is due: contexts grow, and machines change
_HIGHEST_COST = 100.0


class PaddedPrices(Prices):
    """Costs by the width that all rows are padded to; with ``learns`` False they stay as c(T) has them."""

    rounds = PaddedRounds

    def __init__(self, costs: Costs, widest: int, learns: bool = True) -> None:
        self._costs, self._widest, self._learns = costs, widest, learns
        self._rows: defaultdict[int, _Steps] = defaultdict(_Steps)
        self._tables: dict[int, Table] = {}

    def table(self, num_rows: int) -> Table:
        if num_rows not in self._tables:
            nearest = self._nearest(num_rows)
            learnt = self._rows[nearest].costs
            costs = [0.0, self._rows[num_rows].cost_of_nothing]
            for width in range(2, self._widest + 1):
                predicted = self._predicted(num_rows, width)
                cost = predicted
                if learnt:
                    cost *= self._learnt(learnt, nearest, width) / self._predicted(nearest, width)
                if self._costs.filled_to:  # so are the plain steps near: a ratio says too little
                    cost = max(cost, predicted)
                costs.append(max(costs[-1], cost))
            self._tables[num_rows] = Table.of(costs)
        return self._tables[num_rows]

    def plain(self, num_rows: int) -> float:
        """Return the seconds of a plain step of ``num_rows`` rows, by c(T)."""
        return self._costs.at(num_rows * self._costs.least_width)

    def needs_plain(self, num_rows: int) -> bool:
        return self._rows[num_rows].needs_plain

    def note(self, num_rows: int, place: int, seconds: float, searching: float, is_plain: bool) -> None:
        if not self._learns:
            return
        steps = self._rows[num_rows]
        if is_plain:
            steps.note_plain(seconds)
        else:
            steps.note_drafted(self._fed(num_rows, place), seconds)
        if steps.has_new_costs():
            self._tables.clear()  # those of other numbers of rows may go by this one's

    def _nearest(self, num_rows: int) -> int:
        """Return the nearest number of rows with costs of its own: rows come and go faster than costs are learnt.

        A row alone, for which c(T) was measured, neither goes by others' nor lends its own.
        """
        known = [number for number, steps in self._rows.items() if steps.costs and (number > 1) == (num_rows > 1)]
        return min(known, key=lambda number: abs(number - num_rows), default=num_rows)

    def _learnt(self, costs: Mapping[int, float], num_rows: int, width: int) -> float:
        """Return the cost of a width by those that were seen; c(T) has the shape beyond the largest."""
        fed, largest = self._fed(num_rows, width), max(costs)
        if fed >= largest:
            return costs[largest] * self._costs.at(num_rows * fed) / self._costs.at(num_rows * largest)
        # Where passes are filled up, a plain step is as large as a drafted one, which then costs what was seen.
        known = {self._fed(num_rows, 1): 1.0, **costs}
        sizes = sorted(known)
        # No pass takes longer than one of more nodes: a smaller one that seemed to was delayed.
        at_most = [*accumulate((known[size] for size in reversed(sizes)), min)][::-1]
        return float(np.interp(fed, sizes, at_most))

    def _fed(self, num_rows: int, width: int) -> int:
        """The nodes for each row once a pass is filled up."""
        return math.ceil(self._costs.filled(num_rows * max(width, self._costs.least_width)) / num_rows)

    def _predicted(self, num_rows: int, width: int) -> float:
        return self._costs.at(num_rows * max(width, self._costs.least_width)) / self.plain(num_rows)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A drafted step and the plain one near it, in seconds."""

    number: int
    width: int
    drafted: float
    plain: float


class _Steps:
    """The times of steps of some number of rows."""

    def __init__(self) -> None:
        self._num_steps = self._num_since_plain = 0
        self.needs_plain = False
        self._plain: deque[float] = deque(maxlen=_NEAR)  # seconds of the last plain steps in a row
        self._before: deque[tuple[int, float]] = deque(maxlen=_NEAR)  # the last drafted steps, for the next plain one
        self._pairs: defaultdict[int, deque[_Pair]] = defaultdict(lambda: deque(maxlen=_MOST))  # by bits of the width
        self._known: dict[int, float] = {}  # costs by width

    @property
    def cost_of_nothing(self) -> float:
        """Plain steps that one takes in which the drafter found nothing."""
        return max(1.0, self._known.get(1, 1.0))

    @property
    def costs(self) -> Mapping[int, float]:
        """Costs of drafted steps by width, in plain steps; steps without a draft aren't among them."""
        return {width: cost for width, cost in self._known.items() if width > 1}

    def note_plain(self, seconds: float) -> None:
        """Note a step in which nothing was drafted."""
        if self._num_since_plain:
            self._plain.clear()
        self._plain.append(seconds)
        self._num_since_plain, self.needs_plain = 0, False

    def note_drafted(self, width: int, seconds: float) -> None:
        """Note a step with drafts; it counts once a plain step is near."""
        self._num_since_plain += 1
        self._before.append((width, seconds))
        if self._num_since_plain > _NEAR or not self._plain:
            is_new = len(self._pairs[width.bit_length()]) < _FEWEST
            self.needs_plain = is_new or self._num_since_plain >= _REFRESH
            return
        plain = min(self._plain)
        for each, taken in self._before:
            self._pairs[each.bit_length()].append(_Pair(self._num_steps, each, taken, plain))
        self._before.clear()

    def has_new_costs(self) -> bool:
        """Return True if costs have changed since the last step by more than a fiftieth."""
        self._num_steps += 1
        learnt = dict[int, float]()
        for pairs in self._pairs.values():
            recent = [pair for pair in pairs if pair.number > self._num_steps - _MEMORY]
            learnt |= _learnt(recent if len(recent) >= _FEWEST else [*pairs][-_FEWEST:])
        is_same = learnt.keys() == self._known.keys() and all(
            abs(learnt[width] - known) <= 0.02 * known for width, known in self._known.items()
        )
        if not is_same:
            self._known = learnt
        return not is_same


def _learnt(recent: list[_Pair]) -> dict[int, float]:
    """Return the relative cost of the narrowest of some steps; nothing if they are too few to tell."""
    is_surprise = len(recent) > 1 and all(pair.drafted > _SURPRISE * pair.plain for pair in recent)
    if len(recent) < _FEWEST and not is_surprise:
        return {}
    drafted = _lower_quartile([pair.drafted for pair in recent])
    ratio = drafted / max(_lower_quartile([pair.plain for pair in recent]), drafted / _HIGHEST_COST)
    return {min(pair.width for pair in recent): max(1.0, ratio)}


def _lower_quartile(seconds: list[float]) -> float:
    return max(sorted(seconds)[(len(seconds) - 1) // 4], 1e-12)  # a clock that stands still divides by nothing
