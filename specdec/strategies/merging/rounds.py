"""Rounds in which the drafts of a step grow, until the next round no longer pays.

Where rows are padded to the widest, a pass that is one node wider has room for one more of every row. Where they are
packed, each node takes room for itself, and the likeliest of all rows comes first.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import ClassVar

from specdec.record import StepRecord
from specdec.strategies.merging.growth import Growth


class Rounds(ABC):
    """The rounds of one step.

    Args:
        growths: of the rows' drafts.
        limits: nodes below the root that each may have.
    """

    shares_room: ClassVar[bool]
    """True if a node in one row makes room for one in every other."""

    def __init__(self, growths: Sequence[Growth], limits: Sequence[int]) -> None:
        self._growths, self._limits = growths, limits

    @abstractmethod
    def next(self) -> Sequence[Growth]:
        """Begin the next round: the growths that take a node in it, none at the end.

        The caller lets them take it before it asks for another round.
        """

    @abstractmethod
    def sizes(self, num_rounds: int) -> list[int]:
        """Return the nodes of each tree after some rounds, the root included; a tree may have fewer."""

    @staticmethod
    @abstractmethod
    def place(record: StepRecord) -> int:
        """The place of a step's price in a table: one more than the rounds of its drafts."""


class PaddedRounds(Rounds):
    """One node more of every row that has one."""

    shares_room = True

    def __init__(self, growths: Sequence[Growth], limits: Sequence[int]) -> None:
        super().__init__(growths, limits)
        self._growing, self._fewest = growths, min(limits, default=0)
        self._num_rounds = 0

    def next(self) -> Sequence[Growth]:
        if self._num_rounds >= self._fewest:
            pairs = zip(self._growths, self._limits, strict=True)
            self._growing = [growth for growth, limit in pairs if limit > self._num_rounds]
        self._num_rounds += 1
        return self._growing

    def sizes(self, num_rounds: int) -> list[int]:
        return [1 + num_rounds] * len(self._growths)

    @staticmethod
    def place(record: StepRecord) -> int:
        return record.width


class PackedRounds(Rounds):
    """The most probable node of all rows."""

    shares_room = False

    def __init__(self, growths: Sequence[Growth], limits: Sequence[int]) -> None:
        super().__init__(growths, limits)
        self._heap: list[tuple[float, int]] = []
        self._order: list[int] = []  # the row of each round
        for row in range(len(growths)):
            self._enter(row)

    def next(self) -> Sequence[Growth]:
        if self._order:
            self._enter(self._order[-1])  # which has taken its node since
        if not self._heap:
            return ()
        _, row = heappop(self._heap)
        self._order.append(row)
        return (self._growths[row],)

    def _enter(self, row: int) -> None:
        growth = self._growths[row]
        if growth.next_chance and len(growth) <= self._limits[row]:
            heappush(self._heap, (-growth.next_chance, row))

    def sizes(self, num_rounds: int) -> list[int]:
        taken = Counter(self._order[:num_rounds])
        return [1 + taken[row] for row in range(len(self._growths))]

    @staticmethod
    def place(record: StepRecord) -> int:
        return 1 + sum(len(outcome.tree) - 1 for outcome in record.outcomes if outcome.tree is not None)
