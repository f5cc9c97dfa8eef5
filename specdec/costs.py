"""The costs of steps: c(T) as it is measured at load, and models of costs that learn from the time of steps.

Costs are in plain steps of as many rows. Drafts grow in *rounds*, each of which adds nodes to the pass; the size of a
step is one more than its rounds. An engine whose costs have a shape of their own brings its model: see
``Backend.cost_model``.
"""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from specdec.layout import NO_PADDING, Padding
from specdec.record import StepRecord

_MOST, _FEWEST = 16, 2  # drafted steps of a size whose times count, and that are needed
_NEAR = 3  # steps before and after a plain one that are compared with it: a machine's speed changes
_REFRESH = 48  # steps after which a plain one is due: contexts grow


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass by its number of nodes, in ascending order.

    Attributes:
        plain: seconds of an ordinary plain step.
        padding: of passes, which cost what the padded ones cost.
        is_clear: False if the timed rounds disagree or were disturbed, so these costs should be measured again.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    plain: float
    padding: Padding = NO_PADDING
    is_clear: bool = field(default=True, compare=False)

    def at(self, num_nodes: float) -> float:
        """Return the seconds of a pass: linear between the measured sizes, extrapolated from the last two."""
        num_nodes = self.padding.size(num_nodes)
        if num_nodes > self.sizes[-1]:
            (before, last), (cost_before, cost) = self.sizes[-2:], self.seconds[-2:]
            return cost + (num_nodes - last) * max(0.0, cost - cost_before) / (last - before)
        return float(np.interp(num_nodes, self.sizes, self.seconds))

    def relative_at(self, num_nodes: float) -> float:
        """Return c(T): the cost of a pass over that of a plain step."""
        return self.at(num_nodes) / self.plain

    @property
    def relative(self) -> tuple[float, ...]:
        """c(T) of each measured size: its cost over that of an ordinary plain step."""
        return tuple(seconds / self.plain for seconds in self.seconds)


# Where measured costs would decide about the text, or can't be measured now; merges correct them by their steps' time.
NOMINAL_COSTS = Costs(sizes=(1, 65), seconds=(1.0, 1.8), plain=1.0)


@dataclass(frozen=True, slots=True)
class CostTable:
    """The costs of steps with some number of rows, in plain steps, by size.

    Attributes:
        costs: the cost of each size. The first entry is unused.
        marginal: Δc, for each size the least that one more round costs, however many follow.
        min_marginal: the smallest of these.
    """

    costs: Sequence[float]
    marginal: Sequence[float]
    min_marginal: float

    def at(self, size: int) -> float:
        """Return the cost of a size; sizes beyond the table's cost as its last."""
        return self.costs[min(size, len(self.costs) - 1)]

    @classmethod
    def of(cls, costs: Sequence[float]) -> "CostTable":
        """The table of some costs. Marginal costs are the slopes of the lower convex hull as seen from each size."""
        marginal, hull = [float("inf")] * len(costs), [len(costs) - 1]
        for size in range(len(costs) - 2, -1, -1):
            slopes = [(costs[more] - costs[size]) / (more - size) for more in hull[-2:]]
            while len(hull) > 1 and slopes[0] <= slopes[1]:
                hull.pop()
                slopes = [(costs[more] - costs[size]) / (more - size) for more in hull[-2:]]
            marginal[size] = slopes[-1]
            hull.append(size)
        return cls(costs, marginal, min(marginal[1:-1], default=0.0))


class Growing(Protocol):
    """A draft tree that grows by its most probable candidate."""

    @property
    def next_probability(self) -> float:
        """The probability of the next candidate, 0 if there is none."""


G = TypeVar("G", bound=Growing)


class CostModel(ABC):
    """The costs of steps by their number of rows.

    Attributes:
        is_padded: True if a node in one row makes room for a node in every other row.
        learns: the time that steps take corrects the costs.
    """

    is_padded: ClassVar[bool] = True

    def __init__(self, learns: bool) -> None:
        self.learns = learns

    def rounds(self, growths: Sequence[G]) -> Iterable[Sequence[G]]:
        """Return for each round the trees that take their next node in it (default: all, as rows of one width do)."""
        return repeat(growths)

    @abstractmethod
    def table(self, num_rows: int) -> CostTable:
        """Return the costs of the next step, if it has ``num_rows`` rows."""

    @abstractmethod
    def needs_plain(self, num_rows: int) -> bool:
        """Return True if there is no recent plain step of ``num_rows`` rows to compare drafted ones with."""

    @abstractmethod
    def learn(self, record: StepRecord, is_plain: bool) -> None:
        """Learn from a step that has read no part of a prompt.

        Args:
            is_plain: no drafts were searched for. A search that has found none makes no plain step.
        """


class StepCosts(CostModel):
    """c(T) as it was measured at load, and then the time that steps take.

    c(T) is measured for a single row, quickly, and covers the model alone. Host work, masks, padding and several rows
    come on top, and a busy machine may have spoilt it. So drafted steps are timed near plain ones, and a size costs the
    lower quartile of the one over that of the other, since other programs only ever delay a step. Between the sizes
    that were seen costs are linear, and beyond the largest c(T) has the shape. Numbers of rows without steps of their
    own go by the nearest that has some.

    Args:
        measured: c(T).
        max_size: of a table.
    """

    def __init__(self, measured: Costs, max_size: int, learns: bool = True) -> None:
        super().__init__(learns)
        self._measured, self._max_size = measured, max_size
        self._times = defaultdict[int, _StepTimes](lambda: _StepTimes(bool(measured.padding.sizes)))  # by rows
        self._tables: dict[int, CostTable] = {}
        self._grids: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def table(self, num_rows: int) -> CostTable:
        if num_rows not in self._tables:
            self._tables[num_rows] = CostTable.of([0.0, *self.costs_of(num_rows).tolist()])
        return self._tables[num_rows]

    def costs_of(self, num_rows: int) -> np.ndarray:
        """Return the cost of each size from 1 on; engines that know more override this."""
        nearest = self._nearest(num_rows)
        ratio = self.predicted(num_rows) / self.predicted(nearest)
        costs: np.ndarray = np.maximum.accumulate(self._seen(nearest) * ratio)
        return costs

    def needs_plain(self, num_rows: int) -> bool:
        return self._times[num_rows].needs_plain

    def learn(self, record: StepRecord, is_plain: bool) -> None:
        if self.learns:
            num_rows = record.num_decoding
            times = self._times[num_rows]
            if is_plain:
                times.add_plain(record.total_seconds)
            elif times.add_drafted(self._width(num_rows, record.width), record.total_seconds):
                self._tables.clear()  # those of other numbers of rows may go by this one's

    def _width(self, num_rows: int, width: int) -> float:
        """Return the nodes for each row of a step, with those that fill it up."""
        return self._measured.padding.size_of_rows(num_rows, width) / num_rows

    def _nearest(self, num_rows: int) -> int:
        """Return the nearest number of rows with costs of its own: rows come and go faster than costs are learnt.

        A row alone, for which c(T) was measured, neither goes by others' nor lends its own.
        """
        known = [number for number, times in self._times.items() if times.pairs and (number > 1) == (num_rows > 1)]
        return min(known, key=lambda number: abs(number - num_rows), default=num_rows)

    def filled(self, num_rows: int) -> np.ndarray:
        """Return, by size from 1 on, the nodes for each row once a pass is filled up, in the mean."""
        return self._grid(num_rows)[0]

    def predicted(self, num_rows: int) -> np.ndarray:
        """Return c(T) of each size from 1 on."""
        return self._grid(num_rows)[1]

    def _seen(self, num_rows: int) -> np.ndarray:
        """Return the cost of each size from 1 on."""
        filled, predicted = self._grid(num_rows)
        if not (costs := self._times[num_rows].costs()):
            return predicted
        of_nothing = costs.pop(1, 1.0)  # a search that found no draft, unless its pass is filled up
        # Where passes are filled up, a plain step may be as large as a drafted one, which then costs what was seen.
        known = {float(filled[0]): 1.0, **costs}
        sizes = sorted(known)
        # No pass takes longer than one of more nodes: a smaller one that seemed to was delayed.
        least = np.minimum.accumulate([known[size] for size in reversed(sizes)])[::-1]
        beyond = np.maximum(1.0, predicted / np.interp(sizes[-1], filled, predicted))
        seen: np.ndarray = np.maximum(of_nothing, np.interp(filled, sizes, least) * beyond)
        seen[0] = of_nothing
        return seen

    def _grid(self, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        if num_rows not in self._grids:
            padding, sizes = self._measured.padding, range(1, self._max_size + 1)
            filled = np.array([padding.size_of_rows(num_rows, size) for size in sizes])
            taken = np.array([self._measured.at(size) for size in filled])
            self._grids[num_rows] = filled / num_rows, taken / taken[0]
        return self._grids[num_rows]


class _StepTimes:
    """The times of drafted steps and of the plain ones near them, for some number of rows.

    Args:
        has_sizes: passes are padded to a few sizes, each a group of its own, since costs rise in steps. Otherwise
            widths of equally many bits are a group.

    Attributes:
        pairs: the width and seconds of a drafted step and those of the plain one, by group.
        needs_plain: drafted steps have no plain step near.
    """

    def __init__(self, has_sizes: bool) -> None:
        self._has_sizes = has_sizes
        self.pairs = defaultdict[float, deque[tuple[float, float, float]]](lambda: deque(maxlen=_MOST))
        self.needs_plain = False
        self._plain = deque[float](maxlen=_NEAR)  # seconds of the last plain steps in a row
        self._waiting = deque[tuple[float, float]](maxlen=_NEAR)  # widths and seconds, for the next plain step
        self._num_since_plain = 0

    def add_plain(self, seconds: float) -> None:
        """Add a step in which nothing was searched for."""
        if self._num_since_plain:
            self._plain.clear()
        self._plain.append(max(seconds, 1e-12))  # a clock that stands still divides by nothing
        self._num_since_plain, self.needs_plain = 0, False

    def add_drafted(self, width: float, seconds: float) -> bool:
        """Add a step with drafts, which counts once a plain step is near; return True if costs have changed."""
        self._num_since_plain += 1
        self._waiting.append((width, seconds))
        if self._num_since_plain > _NEAR or not self._plain:
            is_new = len(self.pairs.get(self._group(width), ())) < _FEWEST
            self.needs_plain = is_new or self._num_since_plain >= _REFRESH
            return False
        for each, taken in self._waiting:
            self.pairs[self._group(each)].append((each, taken, min(self._plain)))
        self._waiting.clear()
        return True

    def costs(self) -> dict[float, float]:
        """Return the cost of the narrowest width of each group that was seen often enough."""
        known = [tuple(zip(*seen, strict=True)) for seen in self.pairs.values() if len(seen) >= _FEWEST]
        return {min(widths): max(1.0, _quartile(drafted) / _quartile(plain)) for widths, drafted, plain in known}

    def _group(self, width: float) -> float:
        return width if self._has_sizes else int(width).bit_length()


def _quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[(len(seconds) - 1) // 4]
