"""c(T): what a pass over T nodes costs."""

from dataclasses import dataclass, field

import numpy as np

from specdec.padding import NO_PADDING, Padding


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
