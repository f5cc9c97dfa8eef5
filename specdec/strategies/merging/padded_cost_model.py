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

While requests decode, a backend may make the passes of a size faster (``Backend.retimed``). What was learnt of it is
then dropped, and until it was seen again it is believed to cost less than it did, so that it is tried. Where plain
steps have that size, all costs are learnt again, and remain as they are until then.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat
from statistics import median_low

import numpy as np

from specdec.costs import Costs
from specdec.record import StepRecord
from specdec.strategies.merging.cost_model import CostModel, CostTable
from specdec.strategies.merging.growth import Growth

_MOST, _FEWEST = 30, 3  # steps of a size that count, and that are needed
_NEAR = 3  # steps before and after a plain one that are compared with it
_MEMORY = 256  # steps: older ones count only where there are too few
_SURPRISE = 1.5  # plain steps: two steps are enough where both cost more
_REFRESH = 48  # steps after which a plain one is due: contexts grow, and machines change
_REFRESH_PER_SWITCH = 192  # further ones for each plain step's time that a switch costs, since a plain step needs two
_SHARE_OF_SWITCH = 0.4  # simulated steps are fastest with 0.3 to 0.5, whatever a switch costs
_HIGHEST_COST = 100.0
_MOST_SIZES = 4096  # of passes
_SMALLEST_CHANGE = 0.02  # of a cost
_MOST_SWITCHES = 7  # that count
_HOPED = 0.8  # of its cost, for a size whose passes have become faster: graphs with static shapes save 7 to 15 %


class PaddedCostModel(CostModel):
    """Costs by the width that all rows are padded to, up to ``max_width`` nodes."""

    is_padded = True

    def __init__(self, costs: Costs, max_width: int, learns: bool = True) -> None:
        super().__init__(learns)
        self._costs, self._max_width = costs, max_width
        self._seconds = lru_cache(_MOST_SIZES)(costs.at)  # of a pass; each table asks for the same sizes
        self._rows = defaultdict[int, _Steps](lambda: _Steps(has_sizes=bool(costs.padding.sizes)))
        self._tables: dict[tuple[int, float], CostTable] = {}
        self._last_size = 0.0  # of a pass
        self._num_retimed = 0  # changes that are known

    def rounds(self, growths: Sequence[Growth]) -> Iterable[Sequence[Growth]]:
        """Every row takes a node in every round."""
        return repeat(growths)

    def size_of(self, record: StepRecord) -> int:
        trees = [outcome.tree for outcome in record.outcomes]
        is_padded = record.width == 1 and self._costs.padding.may_pad_root(len(trees))
        return 2 if is_padded and trees[0] is not None and trees[0].pads_root else record.width

    def pads_root(self, num_rows: int) -> bool:
        costs = self.table(num_rows).costs
        return self._costs.padding.may_pad_root(num_rows) and costs[1] > costs[2]

    def table(self, num_rows: int) -> CostTable:
        key = num_rows, self._last_size
        if key not in self._tables:
            steps = self._rows[num_rows]
            correction = self._correction(self._nearest(num_rows))
            costs = [0.0, steps.cost_of_nothing]
            for width in range(2, self._max_width + 1):
                costs.append(max(costs[-1], self._predicted(num_rows, width) * correction(width)))
            for width in range(1, self._max_width + 1):
                costs[width] += _SHARE_OF_SWITCH * self.cost_of_switch(num_rows, width)
            self._tables[key] = CostTable.of(costs)
        return self._tables[key]

    def plain(self, num_rows: int) -> float:
        """Return the seconds of a plain step of ``num_rows`` rows, by c(T)."""
        return self._seconds(num_rows * self._costs.padding.least_width)

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

    def relearn(self, retimed: Sequence[int]) -> None:
        for size in retimed[self._num_retimed :] if self.learns else ():
            steps = self._rows[1]
            if size == self._filled(1, 1):
                steps.relearn_all()
            elif size <= self._max_width:
                steps.relearn(size, _HOPED * self._predicted(1, size) * self._correction(1)(size))
            steps.has_new_costs()
            self._tables.clear()
        self._num_retimed = len(retimed)

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

    def _correction(self, num_rows: int) -> Callable[[int], float]:
        """Return the factor, by width, between the costs that were seen and those that c(T) predicts."""
        costs = self._rows[num_rows].costs
        if not costs:
            return lambda _: 1.0
        # Where passes are filled up, a plain step is as large as a drafted one, which then costs what was seen.
        known = {self._filled(num_rows, 1): 1.0, **costs}
        sizes, largest = sorted(known), max(costs)
        # No pass takes longer than one of more nodes: a smaller one that seemed to was delayed.
        at_most = [*accumulate((known[size] for size in reversed(sizes)), min)][::-1]

        def factor(width: int) -> float:
            filled = self._filled(num_rows, width)
            beyond = self._seconds(num_rows * max(filled, largest)) / self._seconds(num_rows * largest)
            return float(np.interp(filled, sizes, at_most)) * beyond / self._predicted(num_rows, width)

        return factor

    def _filled(self, num_rows: int, width: int) -> int:
        """The nodes for each row once a pass is filled up."""
        return math.ceil(self._costs.padding.size_of_rows(num_rows, width) / num_rows)

    def _predicted(self, num_rows: int, width: int) -> float:
        return self._seconds(num_rows * max(width, self._costs.padding.least_width)) / self.plain(num_rows)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A drafted step and the plain one near it, in seconds."""

    number: int
    width: int
    drafted: float
    plain: float


class _Steps:
    """The times of steps of some number of rows.

    Args:
        has_sizes: passes are padded to a few sizes, and each is a group of its own: costs rise in steps. Otherwise
            widths of equally many bits are a group.

    Attributes:
        costs: costs of drafted steps by width, in plain steps. Steps without a draft aren't among them.
        cost_of_nothing: the cost of a step whose search found no draft.
        cost_of_switch: what a step costs more if its pass has another size than the last one.
        needs_plain: True if drafted steps have no plain step near.
    """

    def __init__(self, has_sizes: bool) -> None:
        self._has_sizes = has_sizes
        self.costs: Mapping[int, float] = {}
        self.cost_of_nothing = 1.0
        self.needs_plain = False
        self._num_steps = self._num_since_plain = 0
        self._plain: deque[float] = deque(maxlen=_NEAR)  # seconds of the last plain steps in a row
        # The last drafted steps, for the next plain one: width, seconds, and whether each was a switch.
        self._before: deque[tuple[int, float, bool]] = deque(maxlen=_NEAR)
        self._pairs: defaultdict[int, deque[_Pair]] = defaultdict(lambda: deque(maxlen=_MOST))  # by group
        self._known: dict[int, float] = {}  # costs by width
        self._former: dict[int, dict[int, float]] = {}  # by group, costs by width that are to be learnt again
        self.cost_of_switch = 0.0
        self._switched = 0.0  # seconds of the last step, if it was a plain one with a switch
        self._switches: deque[float] = deque(maxlen=_MOST_SWITCHES)  # what they cost

    def add_plain(self, seconds: float, is_switch: bool = False) -> None:
        """Add a step in which nothing was drafted; after one with a switch, another is needed."""
        if is_switch:
            self._switched, self.needs_plain = seconds, True
            return
        if self._switched:
            self._switches.append(max(0.0, self._switched / max(seconds, 1e-12) - 1.0))
            self._switched = 0.0
        if self._num_since_plain:
            self._plain.clear()
        self._plain.append(seconds)
        self._num_since_plain, self.needs_plain = 0, False

    def add_drafted(self, width: int, seconds: float, is_switch: bool = False) -> None:
        """Add a step with drafts; it counts once a plain step is near, less the cost of a switch once that is known."""
        self._num_since_plain, self._switched = self._num_since_plain + 1, 0.0
        if self._switches or not is_switch:
            self._before.append((width, seconds, is_switch))
        if self._num_since_plain > _NEAR or not self._plain:
            # Plain steps right after a switch show what it costs, which bounds the loss from then on.
            is_new = not self._switches if is_switch else len(self._pairs[self._group(width)]) < _FEWEST
            most = _REFRESH + _REFRESH_PER_SWITCH * self.cost_of_switch
            self.needs_plain = is_new or self._num_since_plain >= most
            return
        plain = min(self._plain)
        for each, taken, was_switch in self._before:
            drafted = taken - was_switch * self.cost_of_switch * plain
            self._pairs[self._group(each)].append(_Pair(self._num_steps, each, drafted, plain))
        self._before.clear()

    def relearn(self, width: int, cost: float) -> None:
        """Forget the steps of a group, and give it a cost until it was seen again."""
        group = self._group(width)
        self._pairs.pop(group, None)
        self._former[group] = {width: max(1.0, cost)}
        others = [step for step in self._before if self._group(step[0]) != group]
        self._before = deque(others, maxlen=_NEAR)
        self._switches.clear()

    def relearn_all(self) -> None:
        """Forget all steps, but no cost until its size was seen again: plain steps take another time than before."""
        self._former = {self._group(width): {width: cost} for width, cost in self._known.items()}
        for steps in (self._pairs, self._before, self._plain, self._switches):
            steps.clear()
        self._switched, self.needs_plain = 0.0, True

    def _group(self, width: int) -> int:
        return width if self._has_sizes else width.bit_length()

    def has_new_costs(self) -> bool:
        """Return True if costs have changed since the last step by more than a fiftieth."""
        self._num_steps += 1
        learnt = dict[int, float]()
        for group in self._pairs.keys() | self._former.keys():
            pairs = self._pairs[group]
            recent = [pair for pair in pairs if pair.number > self._num_steps - _MEMORY]
            if costs := _learnt(recent if len(recent) >= _FEWEST else [*pairs][-_FEWEST:]):
                self._former.pop(group, None)
            learnt |= costs or self._former.get(group, {})
        is_same = learnt.keys() == self._known.keys() and all(
            abs(learnt[width] - known) <= _SMALLEST_CHANGE * known for width, known in self._known.items()
        )
        if not is_same:
            self._known = learnt
            self.costs = {width: cost for width, cost in learnt.items() if width > 1}
            self.cost_of_nothing = learnt.get(1, 1.0)
        switch = median_low(self._switches) if self._switches else self.cost_of_switch
        if abs(switch - self.cost_of_switch) > _SMALLEST_CHANGE:
            self.cost_of_switch, is_same = switch, False
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
