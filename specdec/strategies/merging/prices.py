"""Prices of a step's drafts, in plain steps: the contract of what learns them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from specdec.strategies.merging.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Table:
    """Costs of steps of some rows, in plain steps, by the number of rounds plus one (``rounds.py``).

    ``floors`` has the least that one round more costs, however many others come with it, and ``least`` the least of
    all.
    """

    costs: Sequence[float]
    floors: Sequence[float]
    least: float

    @classmethod
    def of(cls, costs: Sequence[float]) -> "Table":
        """The table of some costs; the floors are the slopes of their lower convex hull, seen from each of them."""
        floors, hull = [float("inf")] * len(costs), [len(costs) - 1]
        for place in range(len(costs) - 2, -1, -1):
            slopes = [(costs[more] - costs[place]) / (more - place) for more in hull[-2:]]
            while len(hull) > 1 and slopes[0] <= slopes[1]:
                hull.pop()
                slopes = [(costs[more] - costs[place]) / (more - place) for more in hull[-2:]]
            floors[place] = slopes[-1]
            hull.append(place)
        return cls(costs, floors, min(floors[1:-1], default=0.0))


class Prices(ABC):
    """Tables by the number of rows."""

    rounds: ClassVar[type[Rounds]]
    """The rounds that the tables have prices of."""

    @abstractmethod
    def table(self, num_rows: int) -> Table:
        """Return the costs of steps of ``num_rows`` rows."""

    @abstractmethod
    def plain(self, num_rows: int) -> float:
        """Return the time of a plain step of ``num_rows`` rows; only ratios between numbers of rows count."""

    @abstractmethod
    def needs_plain(self, num_rows: int) -> bool:
        """Return True if there is no recent plain step of ``num_rows`` rows to compare drafted ones with."""

    @abstractmethod
    def note(self, num_rows: int, place: int, seconds: float, searching: float, is_plain: bool) -> None:
        """Learn what a step took; not called for a prompt's pass, which is like no other.

        Args:
            place: the step's in its table.
            seconds: of the whole step.
            searching: of them, those of the search for drafts.
            is_plain: nothing was drafted in it. A step that was to be drafted for, and then had nothing but its root,
                is no such one: it took the drafter's time.
        """
