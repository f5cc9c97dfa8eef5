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
_EVERY = 8  # steps, after which tables are made anew
_MOST_ROUNDS = 512
_BEYOND = 8  # nodes
_NEAR = 1.25  # times the nodes: a plain step isn't needed to tell what one takes
_FAR = 1.5  # times the nodes: a slope between sizes that are nearer is mostly noise


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass that was seen: the step's number, its nodes, and its seconds without the search for drafts."""

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
        self._known: list[int] = []  # sizes that are priced by what was seen
        self._searching: deque[float] = deque(maxlen=_MOST)  # seconds for each row
        self._num_steps = 0
        self._tables: dict[int, Table] = {}

    def table(self, num_rows: int) -> Table:
        if num_rows not in self._tables:
            most = min(num_rows * self._num_nodes, max(num_rows, self._costs.sizes[-1] - num_rows), _MOST_ROUNDS)
            costs = [self._cost(num_rows, num_rows + rounds) for rounds in range(most + 1)]
            self._tables[num_rows] = Table.of([0.0, *costs])
        return self._tables[num_rows]

    def plain(self, num_rows: int) -> float:
        return self._costs.at(num_rows)

    def needs_plain(self, num_rows: int) -> bool:
        return self._learns and not any(num_rows / _NEAR <= size <= num_rows * _NEAR for size in self._known)

    def note(self, num_rows: int, place: int, seconds: float, searching: float, is_plain: bool) -> float | None:
        if not self._learns:
            return None
        self._num_steps += 1
        num_nodes = num_rows + place - 1
        passes = self._passes[size_of(num_nodes)]
        passes.append(Pass(self._num_steps, num_nodes, seconds - searching))
        if not is_plain:
            self._searching.append(searching / num_rows)
        if len(passes) == _FEWEST or self._num_steps % _EVERY == 0:
            self._believe()
        is_known = self._costs is not self._first and not is_plain
        return self._cost(num_rows, num_nodes) if is_known else None

    def _cost(self, num_rows: int, num_nodes: int) -> float:
        """The cost of a step that was drafted for, in plain ones."""
        searching = num_rows * statistics.median_low(self._searching) if self._searching else 0.0
        return (self._costs.at(num_nodes) + searching) / self._costs.at(num_rows)

    def _believe(self) -> None:
        """Make c(T) anew of the passes that were seen of late."""
        sizes, seconds = list[int](), list[float]()
        for _, passes in sorted(self._passes.items()):
            while passes and passes[0].step <= self._num_steps - _LAST:
                passes.popleft()
            if len(passes) >= _FEWEST:
                sizes.append(statistics.median_low(each.num_nodes for each in passes))
                seconds.append(statistics.median_low(each.seconds for each in passes))
        self._known = sizes
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
                least = taken * self._first.at(above) / self._first.at(size)
                pairs.append((above, min(known.at(above), (least + known.at(above)) / 2)))
        sizes, seconds = zip(*pairs, strict=True)
        return replace(known, sizes=sizes, seconds=seconds)
