"""The times of steps of some number of rows, and the costs of drafted ones that they show.

A machine's speed changes, so drafted steps count once a plain one is near, and other programs only ever delay a step,
so the cost of a size is the lower quartile of the drafted steps' times over that of the plain ones'.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

_MOST, _FEWEST = 30, 3  # steps of a size that count, and that are needed
_NEAR = 3  # steps before and after a plain one that are compared with it
_MEMORY = 256  # steps: older ones count only where there are too few
_SURPRISE = 1.5  # plain steps: two steps are enough where both cost more
_REFRESH = 48  # steps after which a plain one is due: contexts grow, and machines change
_REFRESH_PER_SWITCH = 192  # further ones for each plain step's time that a switch costs, since a plain step needs two
_HIGHEST_COST = 100.0
_SMALLEST_CHANGE = 0.02  # of a cost
_MOST_SWITCHES, _FEWEST_SWITCHES = 7, 3  # that count, and that show a high cost: other programs may delay one
_LARGEST_UNPROVEN_SWITCH = 1.0  # plain steps: the cost of a switch until so many were seen
_MOST_PUT_OFF = 4.0  # plain steps of a switch's cost, for which a plain step is put off


@dataclass(frozen=True, slots=True)
class _Pair:
    """A drafted step and the plain one near it, in seconds."""

    number: int
    width: float
    drafted: float
    plain: float


class StepTimes:
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
        self.costs: Mapping[float, float] = {}
        self.cost_of_nothing = 1.0
        self.needs_plain = False
        self._num_steps = self._num_since_plain = 0
        self._plain: deque[float] = deque(maxlen=_NEAR)  # seconds of the last plain steps in a row
        # The last drafted steps, for the next plain one: width, seconds, and whether each was a switch.
        self._before: deque[tuple[float, float, bool]] = deque(maxlen=_NEAR)
        self._pairs: defaultdict[float, deque[_Pair]] = defaultdict(lambda: deque(maxlen=_MOST))  # by group
        self._known: dict[float, float] = {}  # costs by width
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

    def add_drafted(self, width: float, seconds: float, is_switch: bool = False) -> None:
        """Add a step with drafts; it counts once a plain step is near, less the cost of a switch once that is known."""
        self._num_since_plain, self._switched = self._num_since_plain + 1, 0.0
        if self._switches or not is_switch:
            self._before.append((width, seconds, is_switch))
        if self._num_since_plain > _NEAR or not self._plain:
            # Plain steps right after a switch show what it costs, which bounds the loss from then on.
            is_new = not self._switches if is_switch else len(self._pairs[self._group(width)]) < _FEWEST
            most = _REFRESH + _REFRESH_PER_SWITCH * min(_MOST_PUT_OFF, self.cost_of_switch)
            self.needs_plain = is_new or self._num_since_plain >= most
            return
        plain = min(self._plain)
        for each, taken, was_switch in self._before:
            drafted = taken - was_switch * self.cost_of_switch * plain
            self._pairs[self._group(each)].append(_Pair(self._num_steps, each, drafted, plain))
        self._before.clear()

    def _group(self, width: float) -> float:
        return width if self._has_sizes else int(width).bit_length()

    def has_new_costs(self) -> bool:
        """Return True if costs have changed since the last step by more than a fiftieth."""
        self._num_steps += 1
        learnt = dict[float, float]()
        for pairs in self._pairs.values():
            recent = [pair for pair in pairs if pair.number > self._num_steps - _MEMORY]
            learnt |= _learnt(recent if len(recent) >= _FEWEST else [*pairs][-_FEWEST:])
        is_same = learnt.keys() == self._known.keys() and all(
            abs(learnt[width] - known) <= _SMALLEST_CHANGE * known for width, known in self._known.items()
        )
        if not is_same:
            self._known = learnt
            self.costs = {width: cost for width, cost in learnt.items() if width > 1}
            self.cost_of_nothing = learnt.get(1, 1.0)
        switch = median_low(self._switches) if self._switches else self.cost_of_switch
        if 0 < len(self._switches) < _FEWEST_SWITCHES:
            switch = min(switch, _LARGEST_UNPROVEN_SWITCH)
        if abs(switch - self.cost_of_switch) > _SMALLEST_CHANGE:
            self.cost_of_switch, is_same = switch, False
        return not is_same


def _learnt(recent: list[_Pair]) -> dict[float, float]:
    """Return the relative cost of the narrowest of some steps; nothing if they are too few to tell."""
    is_surprise = len(recent) > 1 and all(pair.drafted > _SURPRISE * pair.plain for pair in recent)
    if len(recent) < _FEWEST and not is_surprise:
        return {}
    drafted = _lower_quartile([pair.drafted for pair in recent])
    ratio = drafted / max(_lower_quartile([pair.plain for pair in recent]), drafted / _HIGHEST_COST)
    return {min(pair.width for pair in recent): max(1.0, ratio)}


def _lower_quartile(seconds: list[float]) -> float:
    return max(sorted(seconds)[(len(seconds) - 1) // 4], 1e-12)  # a clock that stands still divides by nothing
