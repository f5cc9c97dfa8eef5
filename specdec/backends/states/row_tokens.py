"""The tokens of rows that passes over chains read."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chain:
    """The tokens that a layout adds to a row.

    Attributes:
        tokens: they follow the row's committed tokens.
        num_trunk: the first of them that precede the root; all of them in a chunk of a prompt.
    """

    tokens: Sequence[int]
    num_trunk: int


@dataclass(frozen=True, slots=True)
class RowTokens:
    """Consecutive tokens of one row that a pass reads, the first of them at position ``start``."""

    row: int
    start: int
    tokens: Sequence[int]

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)
