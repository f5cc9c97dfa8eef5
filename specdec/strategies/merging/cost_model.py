"""The contract of cost models: the cost of a step with drafts, in plain steps.

Drafts grow in rounds. Each round adds nodes to a pass, and a model says which: one of every row where rows are padded
to the widest, or one of any row where they are packed. A step's size is one more than its rounds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from specdec.record import StepRecord
from specdec.strategies.merging.growth import Growth


@dataclass(frozen=True, slots=True)
class CostTable:
    """The costs of steps with some number of rows, in plain steps, by size.

    Attributes:
        costs: the cost of each size. The first entry is unused.
        marginal: for each size, the least that one more round costs, however many follow.
        min_marginal: the smallest marginal cost of all sizes.
    """

    costs: Sequence[float]
    marginal: Sequence[float]
    min_marginal: float

    def at(self, size: int) -> float:
        """Return the cost of a size; sizes beyond the table's cost as its last."""
        return self.costs[min(size, len(self.costs) - 1)]

    def over_plain(self, size: int) -> float:
        """Return what a step of a size costs more than one of size 1."""
        return self.at(size) - self.costs[1]

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


class CostModel(ABC):
    """The costs of steps by their number of rows. With ``learns`` they are corrected by the time that steps take."""

    is_padded: ClassVar[bool]
    """True if a node in one row makes room for a node in every other row."""

    def __init__(self, learns: bool) -> None:
        self.learns = learns

    @abstractmethod
    def rounds(self, growths: Sequence[Growth]) -> Iterable[Sequence[Growth]]:
        """Return for each round the growths that take their next node in it, before the next round begins."""

    @abstractmethod
    def size_of(self, record: StepRecord) -> int:
        """Return a step's size."""

    @abstractmethod
    def table(self, num_rows: int) -> CostTable:
        """Return the costs of steps of ``num_rows`` rows."""

    def cost_of_switch(self, num_rows: int, size: int) -> float:
        """Return what a step of a size costs now because the last pass had another one, in plain steps.

        Tables contain a share of it.
        """
        return 0.0

    @abstractmethod
    def plain(self, num_rows: int) -> float:
        """Return the time of a plain step of ``num_rows`` rows, in any unit."""

    @abstractmethod
    def needs_plain(self, num_rows: int) -> bool:
        """Return True if there is no recent plain step of ``num_rows`` rows to compare drafted ones with."""

    @abstractmethod
    def learn(self, num_rows: int, size: int, seconds: float, searching: float, is_plain: bool) -> None:
        """Learn from the time of a step, unless it has read a part of a prompt.

        Args:
            seconds: time of the whole step.
            searching: time of the search for drafts, as a part of it.
            is_plain: no drafts were searched for. A search that has found none makes no plain step.
        """
