"""State of a drafter that is cached with a text's keys and values."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Retained:
    """A drafter's state about part of a text, cached with the keys and values of that part.

    Attributes:
        state: the strategy's own; it isn't modified.
        num_bytes: its size, counted against the memory for cached keys and values.
    """

    state: Any
    num_bytes: int
