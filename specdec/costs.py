"""c(T): what a pass over T nodes costs."""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass by its number of nodes, in ascending order.

    Attributes:
        plain: seconds of an ordinary plain step.
        filled_to: numbers of nodes to which passes are padded, ascending; larger passes aren't padded.
        least_width: number of nodes to which each row is padded first.
        is_clear: False if the timed rounds disagree or were disturbed, so these costs should be measured again.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    plain: float
    filled_to: tuple[int, ...] = ()
    least_width: int = 1
    is_clear: bool = field(default=True, compare=False)

    def at(self, num_nodes: float) -> float:
        """Return the seconds of a pass: linear between the measured sizes, extrapolated from the last two."""
        num_nodes = self.filled(num_nodes)
        if num_nodes > self.sizes[-1]:
            (before, last), (cost_before, cost) = self.sizes[-2:], self.seconds[-2:]
            return cost + (num_nodes - last) * max(0.0, cost - cost_before) / (last - before)
        return float(np.interp(num_nodes, self.sizes, self.seconds))

    def filled(self, num_nodes: float) -> float:
        """Return the nodes that a pass of ``num_nodes`` is padded to."""
        index = bisect_left(self.filled_to, num_nodes)
        return self.filled_to[index] if index < len(self.filled_to) else num_nodes

    def relative_at(self, num_nodes: float) -> float:
        """Return c(T): the cost of a pass over that of a plain step."""
        return self.at(num_nodes) / self.plain

    @property
    def relative(self) -> tuple[float, ...]:
        """c(T) of each measured size: its cost over that of an ordinary plain step."""
        return tuple(seconds / self.plain for seconds in self.seconds)
