"""The state that a strategy retains of a text, cached with the text's keys and values for later requests."""

from collections.abc import Callable
from dataclasses import dataclass

from specdec.decoding.plan import Strategy
from specdec.strategies.retained import Retained


@dataclass(frozen=True, slots=True)
class Retention:
    """A request's drafter, as contexts and the prefix cache see it.

    Attributes:
        num_positions: the first positions whose signals the drafter has received.
        retain: the drafter's state about positions from a start to a stop, or None.
    """

    strategy: Strategy
    num_positions: int
    retain: Callable[[int, int], Retained | None]

    def state(self, start: int, stop: int) -> Retained | None:
        """The state about some positions; None if the drafter has not received all of their signals."""
        return self.retain(start, stop) if stop <= self.num_positions else None
