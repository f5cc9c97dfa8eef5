"""c(T): what a pass over T nodes costs."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass, by its number of nodes, ascending; ``plain`` is an ordinary plain step's."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    plain: float

    def at(self, num_nodes: float) -> float:
        """Seconds of a pass over so many nodes: linear between what was measured, and on from the last two."""
        if num_nodes > self.sizes[-1]:
            (before, last), (cost_before, cost) = self.sizes[-2:], self.seconds[-2:]
            return cost + (num_nodes - last) * max(0.0, cost - cost_before) / (last - before)
        return float(np.interp(num_nodes, self.sizes, self.seconds))

    def relative_at(self, num_nodes: float) -> float:
        """c(T) of so many nodes."""
        return self.at(num_nodes) / self.plain

    @property
    def relative(self) -> tuple[float, ...]:
        """c(T): over the cost of an ordinary plain step."""
        return tuple(seconds / self.plain for seconds in self.seconds)
