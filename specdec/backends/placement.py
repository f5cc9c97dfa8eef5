"""The tokens that a pass over chains reads, the rows that share a call, and the slots that a pass writes to."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

_SLOT_ROUNDING = 64


@dataclass(frozen=True, slots=True)
class RowTokens:
    """Consecutive tokens of one row that a pass reads, the first of them at position ``start``.

    Attributes:
        num_prefix: of what a layout adds to a row, the first tokens that precede the root; all in a chunk of a prompt.
    """

    row: int
    start: int
    tokens: Sequence[int]
    num_prefix: int = field(default=0, compare=False)

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


@dataclass(slots=True)
class Placement:
    """The slots of the next forward: rows from ``first`` on, each from its own start slot; shared by all layers.

    ``scattered`` has the numbers of the rows if they aren't consecutive. ``num_asked`` counts how often modelling code
    has read the number of slots in use.
    """

    first: int = 0
    starts: tuple[int, ...] = (0,)
    num_rows: int = 1  # to make room for
    num_slots: int = 0
    num_asked: int = 0
    scattered: tuple[int, ...] = ()
    _lines: dict[Hashable, torch.Tensor] = field(default_factory=dict)  # all layers of a pass share them

    def move(self, first: int, starts: tuple[int, ...], scattered: tuple[int, ...] = ()) -> None:
        """Set where the next forward writes."""
        self.first, self.starts, self.scattered = first, starts, scattered
        self._lines.clear()

    def lines(self, width: int, buffer: torch.Tensor) -> torch.Tensor:
        """Return the lines of a buffer, as a matrix, that ``width`` nodes of each row are written to.

        They are in the order of rows, nodes and heads.
        """
        _, num_heads, num_slots, _ = buffer.shape
        key = width, num_heads, num_slots, buffer.device  # layers may lie on several devices
        if key not in self._lines:
            numbers = self.scattered or range(self.first, self.first + len(self.starts))
            rows = torch.tensor(numbers)[:, None, None]
            slots = torch.tensor(self.starts)[:, None, None] + torch.arange(width)[:, None]
            lines = (rows * num_heads + torch.arange(num_heads)) * num_slots + slots
            self._lines[key] = lines.flatten().to(buffer.device)
        return self._lines[key]


def cheapest_runs(lengths: Sequence[int], overhead: float) -> list[range]:
    """Divide rows into runs of consecutive ones at the least cost.

    A run costs ``overhead``, and for each of its rows as much as the longest of them.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]  # by number of rows: cost, and start of the last run
    for stop in range(1, len(lengths) + 1):
        choices, longest = [], 0
        for start in reversed(range(stop)):
            longest = max(longest, lengths[start])
            choices.append((best[start][0] + overhead + (stop - start) * longest, start))
        best.append(min(choices))
    runs, stop = list[range](), len(lengths)
    while stop:
        runs.append(range(best[stop][1], stop))
        stop = runs[-1].start
    return runs[::-1]


def room_for(num_rows: int, held: int) -> int:
    """Return the rows to make room for: more than needed now, because each growth copies all rows."""
    return held if num_rows <= held else max(num_rows, held + held // 2)


def rounded(num_slots: int) -> int:
    """Return the slots to make room for, at least ``num_slots``."""
    return -(-num_slots // _SLOT_ROUNDING) * _SLOT_ROUNDING
