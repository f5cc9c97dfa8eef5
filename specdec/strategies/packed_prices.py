"""Prices of drafted steps where rows are packed: a pass takes what its nodes take, whosever they are.

So the passes of all steps tell one c(T): plain ones of many rows what drafts of few would cost. It is linear between
the sizes that were seen of late, by the lower median of each, and goes on with its last slope to twice the nodes and a
few: larger passes aren't tried. Before two sizes are known it rises as the costs do that it was begun with. So it does
from each size to the next, until that is seen: costs rise by stairs, and nobody finds a stair's edge from afar.
"""

import statistics
from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from itertools import accumulate

from specdec.costs import Costs, last_of, size_of
from specdec.strategies.prices import Prices, Table
from specdec.strategies.rounds import Packed

_MOST, _FEWEST = 15, 2  # passes of a size that count, and that have to be seen
_LAST = 256  # steps that count: contexts grow, and what seems too dear to be tried is tried again
_REFRESH = 48  # steps after which a plain one is due
_EVERY = 8  # steps, after which tables are made anew
_MOST_ROUNDS = 512
_BEYOND = 8  # nodes
_FAR = 1.5  # times the nodes: a slope between sizes that are nearer is mostly noise


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass that was seen: the step's number, its nodes and seconds."""

    step: int
    num_nodes: int
    seconds: float


class PackedPrices(Prices):
    """Prices by the nodes of all rows together.

    Args:
        costs: those at first; only their proportions count.
        num_nodes: of a row's draft at most.
        learns: False keeps to those costs.
    """

    rounds = Packed

    def __init__(self, costs: Costs, num_nodes: int, learns: bool = True) -> None:
        self._first = self._costs = costs
        self._num_nodes, self._learns = num_nodes, learns
        self._passes: defaultdict[int, deque[Pass]] = defaultdict(lambda: deque(maxlen=_MOST))  # by their size
        self._in_vain: deque[float] = deque(maxlen=_MOST)  # steps in which nothing was found to draft, in plain ones
        self._num_steps = self._num_plain = self._num_since_plain = 0
        self._tables: dict[int, Table] = {}

    def table(self, num_rows: int) -> Table:
        if num_rows not in self._tables:
            most = min(num_rows * self._num_nodes, max(num_rows, self._costs.sizes[-1] - num_rows), _MOST_ROUNDS)
            costs = [self._cost_of_nothing]
            for num_nodes in range(num_rows + 1, num_rows + most + 1):
                costs.append(max(costs[-1], self._relative(num_rows, num_nodes)))
            self._tables[num_rows] = Table.of([0.0, *costs])
        return self._tables[num_rows]

    def plain(self, num_rows: int) -> float:
        return self._costs.at(num_rows)

    def needs_plain(self, num_rows: int) -> bool:
        return self._learns and (self._num_plain < _FEWEST or self._num_since_plain >= _REFRESH)

    def note(self, num_rows: int, place: int, seconds: float, is_plain: bool) -> float | None:
        if not self._learns:
            return None
        self._num_steps += 1
        self._num_plain += is_plain
        self._num_since_plain = 0 if is_plain else self._num_since_plain + 1
        num_nodes, is_known = num_rows + place - 1, self._costs is not self._first
        is_first = False
        if is_plain or num_nodes > num_rows:
            passes = self._passes[size_of(num_nodes)]
            passes.append(Pass(self._num_steps, num_nodes, seconds))
            is_first = len(passes) == _FEWEST
        elif is_known:
            self._in_vain.append(seconds / self._costs.at(num_rows))
        if is_first or self._num_steps % _EVERY == 0:
            self._believe()
        if is_plain or not is_known:
            return None
        return self._cost_of_nothing if num_nodes == num_rows else self._relative(num_rows, num_nodes)

    @property
    def _cost_of_nothing(self) -> float:
        """Plain steps that one takes in which nothing was found to draft."""
        return max(1.0, statistics.median_low(self._in_vain)) if len(self._in_vain) == _MOST else 1.0

    def _relative(self, num_rows: int, num_nodes: int) -> float:
        return self._costs.at(num_nodes) / self._costs.at(num_rows)

    def _believe(self) -> None:
        """Make c(T) anew of the passes that were seen of late."""
        sizes, seconds = list[int](), list[float]()
        for _, passes in sorted(self._passes.items()):
            while passes and passes[0].step <= self._num_steps - _LAST:
                passes.popleft()
            if len(passes) >= _FEWEST:
                sizes.append(statistics.median_low(each.num_nodes for each in passes))
                seconds.append(statistics.median_low(each.seconds for each in passes))
        if not sizes:
            return
        # No pass takes longer than one of more nodes: the slower one was delayed.
        seconds = list(accumulate(reversed(seconds), min))[::-1]
        last, longest = sizes[-1], seconds[-1]
        widest = 2 * last + _BEYOND
        far = bisect_right(sizes, last / _FAR) - 1
        if far >= 0:
            rise = (longest - seconds[far]) / (last - sizes[far]) * (widest - last)
        else:
            rise = longest * (self._first.at(widest) / self._first.at(last) - 1.0)
        if sizes[0] > 1:
            sizes, seconds = [1, *sizes], [seconds[0] * self._first.at(1) / self._first.at(sizes[0]), *seconds]
        plain = seconds[0]
        self._costs = self._with_next(Costs((*sizes, widest), (*seconds, longest + rise), plain))
        self._tables.clear()

    def _with_next(self, known: Costs) -> Costs:
        """Costs with what is hoped of the next size above each that is known."""
        pairs = list[tuple[int, float]]()
        for size, taken, larger in zip(known.sizes, known.seconds, (*known.sizes[1:], 0), strict=True):
            pairs.append((size, taken))
            above = last_of(last_of(size) + 1)
            if above < larger:
                hoped = taken * self._first.at(above) / self._first.at(size)
                pairs.append((above, min(hoped, known.at(above))))
        sizes, seconds = zip(*pairs, strict=True)
        return replace(known, sizes=sizes, seconds=seconds)
