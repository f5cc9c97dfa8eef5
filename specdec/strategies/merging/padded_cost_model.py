"""The cost model of a backend that pads rows to the widest: c(T) at first, and then the time that steps take.

c(T) is measured at load for a single row, quickly, and covers the model alone. Host work, masks, padding and several
rows come on top, and a busy machine may have spoilt it. So costs are learnt from steps: drafted steps are timed near
plain ones, since a machine's speed changes, and the cost of a size is the lower quartile of the drafted steps' times
over that of the plain ones', since other programs only ever delay a step.

Between the sizes that were seen, and down to a plain step, costs are linear, so a large draft that is expensive says
little about a small one. Beyond the largest size c(T) has the shape. Numbers of rows without steps of their own go by
the nearest that has some.

A backend that pads passes to a few sizes may plan each size anew, so a pass of another size than the last one takes
longer. Costs are learnt from passes of the last one's size, and the cost of a switch from plain steps right after one.
A size serves several steps in a row. So the step that switches is charged with a share of the switch: charged with all
of it, drafts would keep a size that no longer pays.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat

import numpy as np

from specdec.costs import Costs
from specdec.record import StepRecord
from specdec.strategies.merging.cost_model import CostModel, CostTable
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.step_times import StepTimes

_SHARE_OF_SWITCH = 0.4  # simulated steps are fastest with 0.3 to 0.5, whatever a switch costs
_MOST_SIZES = 4096  # of passes


class PaddedCostModel(CostModel):
    """Costs by the width that all rows are padded to, up to ``max_width`` nodes."""

    is_padded = True

    def __init__(self, costs: Costs, max_width: int, learns: bool = True) -> None:
        super().__init__(learns)
        self._costs, self._max_width = costs, max_width
        self._seconds = lru_cache(_MOST_SIZES)(costs.at)  # of a pass; each table asks for the same sizes
        self._rows = defaultdict[int, StepTimes](lambda: StepTimes(has_sizes=bool(costs.padding.sizes)))
        self._tables: dict[tuple[int, float], CostTable] = {}
        self._last_size = 0.0  # of a pass

    def rounds(self, growths: Sequence[Growth]) -> Iterable[Sequence[Growth]]:
        """Every row takes a node in every round."""
        return repeat(growths)

    def size_of(self, record: StepRecord) -> int:
        """Return the width of the widest row, as if all had it; a pass that narrower rows share is smaller."""
        return record.width

    def table(self, num_rows: int) -> CostTable:
        key = num_rows, self._last_size
        if key not in self._tables:
            steps = self._rows[num_rows]
            correction = self._correction(self._nearest(num_rows))
            costs = [0.0, steps.cost_of_nothing]
            for width in range(2, self._max_width + 1):
                cost = self._predicted(num_rows, width) * correction(width)
                costs.append(max(costs[-1], cost))
            for width in range(1, self._max_width + 1):
                costs[width] += _SHARE_OF_SWITCH * self.cost_of_switch(num_rows, width)
            self._tables[key] = CostTable.of(costs)
        return self._tables[key]

    def plain(self, num_rows: int) -> float:
        """Return the seconds of a plain step of ``num_rows`` rows, by c(T)."""
        return self._seconds_of(num_rows, 1)

    def needs_plain(self, num_rows: int) -> bool:
        return self._rows[num_rows].needs_plain

    def learn(self, num_rows: int, size: int, seconds: float, searching: float, is_plain: bool) -> None:
        if not self.learns:
            return
        steps, is_switch = self._rows[num_rows], self._is_switch(num_rows, size)
        if is_plain:
            steps.add_plain(seconds, is_switch)
        else:
            steps.add_drafted(self._filled(num_rows, size), seconds, is_switch)
        if steps.has_new_costs():
            self._tables.clear()  # those of other numbers of rows may go by this one's
        self._last_size = self._size(num_rows, size)

    def cost_of_switch(self, num_rows: int, width: int) -> float:
        return self._rows[num_rows].cost_of_switch if self._is_switch(num_rows, width) else 0.0

    def _is_switch(self, num_rows: int, width: int) -> bool:
        """Return True if a step's pass would have another size than the last one."""
        return self._last_size not in (0.0, self._size(num_rows, width))

    def _size(self, num_rows: int, width: int) -> float:
        """Return the size that a pass is padded to, 0 without padding."""
        return self._costs.padding.size_of_rows(num_rows, width) if self._costs.padding.sizes else 0.0

    def _nearest(self, num_rows: int) -> int:
        """Return the nearest number of rows with costs of its own: rows come and go faster than costs are learnt.

        A row alone, for which c(T) was measured, neither goes by others' nor lends its own.
        """
        known = [number for number, steps in self._rows.items() if steps.costs and (number > 1) == (num_rows > 1)]
        return min(known, key=lambda number: abs(number - num_rows), default=num_rows)

    def _correction(self, num_rows: int) -> Callable[[float], float]:
        """Return the factor, by width, between the costs that were seen and those that c(T) predicts."""
        costs = self._rows[num_rows].costs
        if not costs:
            return lambda _: 1.0
        # Where passes are filled up, a plain step is as large as a drafted one, which then costs what was seen.
        known = {self._filled(num_rows, 1): 1.0, **costs}
        sizes, largest = sorted(known), max(costs)
        # No pass takes longer than one of more nodes: a smaller one that seemed to was delayed.
        at_most = [*accumulate((known[size] for size in reversed(sizes)), min)][::-1]

        def factor(width: float) -> float:
            filled = self._filled(num_rows, width)
            beyond = self._seconds_of(num_rows, max(filled, largest)) / self._seconds_of(num_rows, largest)
            return float(np.interp(filled, sizes, at_most)) * beyond / self._predicted(num_rows, width)

        return factor

    def _filled(self, num_rows: int, width: float) -> float:
        """The nodes for each row once a pass is filled up, in the mean."""
        return self._costs.padding.size_of_rows(num_rows, width) / num_rows

    def _seconds_of(self, num_rows: int, width: float) -> float:
        return self._seconds(self._costs.padding.size_of_rows(num_rows, width))

    def _predicted(self, num_rows: int, width: float) -> float:
        return self._seconds_of(num_rows, width) / self.plain(num_rows)
