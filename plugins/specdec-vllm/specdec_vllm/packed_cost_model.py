"""The cost model of a backend that packs rows: a pass takes what its nodes take, whichever rows they are from.

So the passes of all steps measure one c(T): plain steps of many rows what drafts of few would cost. Numbers of nodes
are counted in groups. A group that was seen recently costs what its faster passes took; between groups c(T) is linear,
and beyond the last it goes on as steeply, to twice the nodes. The group above each that was seen is believed cheaper
than the line until it is seen itself: costs rise in stairs.
"""

import statistics
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

import numpy as np

from specdec.costs import Costs
from specdec.record import StepRecord
from specdec.strategies import CostModel, CostTable, Growth

_MOST, _FEWEST = 5, 2  # passes of a group that count, and that have to be seen
_MOST_SEARCHES = 15
_LAST = 256  # steps that count: contexts grow, and what seems too expensive to be tried is tried again
_REFRESH = 48  # steps within which passes have to be seen that show what a plain step takes
_EVERY = 8  # steps between updates
_MOST_ROUNDS = 512  # so that a table is made in a millisecond
_BEYOND = 8  # nodes more than twice the most that were seen: two or four would be too few to begin with
_NEAR = 1.25  # times the nodes: passes that show what a plain step takes
_DOUBT = 1.1  # times what a larger pass takes: the machine has become faster
_USUAL = 2.0  # times the median of searches
_FAR = 1.5  # times the nodes: a slope between sizes that are nearer is mostly noise


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass that was seen: the step's number, and its seconds without the search for drafts."""

    step: int
    seconds: float


class PackedCostModel(CostModel):
    """Costs by the nodes of all rows together.

    Args:
        costs: c(T) at first, in any unit.
        num_nodes: the largest draft of a row.
    """

    is_padded = False

    def __init__(self, costs: Costs, num_nodes: int, learns: bool = True) -> None:
        super().__init__(learns)
        self._first = self._costs = costs
        self._num_nodes = num_nodes
        self._passes: defaultdict[range, deque[Pass]] = defaultdict(lambda: deque(maxlen=_MOST))  # by group
        self._doubtful: set[range] = set()  # groups of which the last passes took longer than larger ones since
        self._searching: deque[float] = deque(maxlen=_MOST_SEARCHES)  # seconds for each row
        self._num_steps = 0
        self._tables: dict[int, CostTable] = {}

    def rounds(self, growths: Sequence[Growth]) -> Iterable[Sequence[Growth]]:
        """The most probable candidate of all rows is taken in each round."""
        heap = [(-growth.next_probability, row) for row, growth in enumerate(growths) if growth.next_probability]
        heapify(heap)
        while heap:
            row = heap[0][1]
            yield (growths[row],)
            if probability := growths[row].next_probability:
                heapreplace(heap, (-probability, row))
            else:
                heappop(heap)

    def size_of(self, record: StepRecord) -> int:
        return 1 + sum(len(outcome.tree) - 1 for outcome in record.outcomes if outcome.tree is not None)

    def table(self, num_rows: int) -> CostTable:
        if num_rows not in self._tables:
            most = max(0, min(num_rows * self._num_nodes, self._costs.sizes[-1] - num_rows, _MOST_ROUNDS))
            seconds = np.interp(np.arange(num_rows, num_rows + most + 1), self._costs.sizes, self._costs.seconds)
            costs = (seconds + num_rows * self._search) / self.plain(num_rows)
            self._tables[num_rows] = CostTable.of([0.0, *costs.tolist()])
        return self._tables[num_rows]

    def plain(self, num_rows: int) -> float:
        return self._costs.at(num_rows)

    def needs_plain(self, num_rows: int) -> bool:
        near = [group for group in self._passes if 1 / _NEAR <= group[-1] / num_rows <= _NEAR]
        num_recent = sum(each.step > self._num_steps - _REFRESH for group in near for each in self._passes[group])
        return self.learns and (num_recent < _FEWEST or any(group in self._doubtful for group in near))

    def learn(self, num_rows: int, size: int, seconds: float, searching: float, is_plain: bool) -> None:
        if not self.learns:
            return
        self._num_steps += 1
        group = group_of(num_rows + size - 1)
        passes = self._passes[group]
        passes.append(Pass(self._num_steps, seconds - searching))
        if not is_plain:
            self._searching.append(searching / num_rows)
        if len(passes) == _FEWEST or self._num_steps % _EVERY == 0 or group in self._doubtful:
            self._update()

    def excess_search(self, num_rows: int, searching: float) -> float:
        """Return what a search took beyond any that tables know, in plain steps: 0 but for those that read texts."""
        return max(0.0, searching - _USUAL * num_rows * self._search) / self.plain(num_rows)

    @property
    def _search(self) -> float:
        """Seconds that the search for a row's draft takes."""
        return statistics.median_low(self._searching) if self._searching else 0.0

    def _update(self) -> None:
        """Derive c(T) from the recent passes."""
        seen = dict[range, float]()
        for group in sorted(self._passes, key=lambda group: group.start):
            passes = self._passes[group]
            while passes and passes[0].step <= self._num_steps - _LAST:
                passes.popleft()
            if len(passes) >= _FEWEST:  # the lower quartile: other programs only ever delay a pass
                seen[group] = sorted(each.seconds for each in passes)[(len(passes) - 1) // 4]
        self._tables.clear()
        if not seen:
            return
        # No pass takes longer than one of more nodes: the slower one was delayed.
        at_most = dict(zip(seen, list(accumulate(reversed(seen.values()), min))[::-1], strict=True))
        self._doubtful = {group for group, seconds in seen.items() if seconds > _DOUBT * at_most[group]}
        knots = {node: seconds for group, seconds in at_most.items() for node in (group[0], group[-1])}
        known = Costs(tuple(knots), tuple(knots.values()), min(knots.values()))
        self._costs = self._with_next(self._with_ends(known), at_most)

    def _with_ends(self, known: Costs) -> Costs:
        """Return costs from one node on, and as far as is to be tried."""
        first, last, taken = known.sizes[0], known.sizes[-1], known.seconds[-1]
        sizes, seconds, most = known.sizes, known.seconds, 2 * last + _BEYOND
        below = bisect_right(sizes, last / _FAR) - 1
        if below >= 0:
            rise = (taken - seconds[below]) / (last - sizes[below]) * (most - last)
        else:
            rise = taken * (self._first.at(most) / self._first.at(last) - 1.0)
        if first > 1:
            sizes, seconds = (1, *sizes), (seconds[0] * self._first.at(1) / self._first.at(first), *seconds)
        return replace(known, sizes=(*sizes, most), seconds=(*seconds, taken + rise))

    def _with_next(self, known: Costs, seen: dict[range, float]) -> Costs:
        """Return costs with a guess for the group above each that was seen: half-way between the line and the least."""
        knots = dict(zip(known.sizes, known.seconds, strict=True))
        for group, taken in seen.items():
            above = group_of(group.stop)
            if above not in seen:
                least, line = taken * self._first.at(above[-1]) / self._first.at(group[-1]), known.at(above[-1])
                knots[above[-1]] = (min(least, line) + line) / 2
        sizes, seconds = zip(*sorted(knots.items()), strict=True)
        return replace(known, sizes=sizes, seconds=seconds)


def group_of(num_nodes: int) -> range:
    """Return the numbers of nodes that count as one size, since few of those of wide passes come twice.

    There are eight groups between powers of two. They end at multiples, as passes do that are filled up.
    """
    places = max(0, (num_nodes - 1).bit_length() - 4)
    first = (num_nodes - 1 >> places << places) + 1
    return range(first, first + (1 << places))
