"""The contract of draft sizers, which decide how many draft tokens of each request a step verifies."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.growth import Growth


class DraftSizer(ABC):
    """Seeks the largest expected gain of a step = 1 + sum of acceptance probabilities / rows - speed-up × c(n).

    c(n) is the cost of the step with n rounds of draft tokens, in plain steps, and the speed-up is the number of tokens
    of a row in the time of a plain step, in recent steps. A sizer defines ``sizes``, which decides how many nodes of
    each request's tree are verified.
    """

    is_plain: bool = False
    """True if a skipped step has no draft tokens at all, forced text included: drafted steps are compared with it."""

    cost: float = 1.0
    """Cost of the step under way, in plain steps, without that of passes of a head."""

    def skips(self, num_rows: int, pending: Sequence[int] = ()) -> bool:
        """Begin a step; return True if at most forced text is drafted in it.

        Args:
            num_rows: number of requests.
            pending: each request's committed tokens that the pass reads again; empty if there are none.
        """
        return False

    def rest(self, num_rows: int) -> int:
        """Return for how many next steps at most forced text would be drafted; they count as made: ``Engine.rest``."""
        return 0

    def min_probability(self, num_rows: int) -> float:
        """Return a bound below which no node of a step with ``num_rows`` requests may be."""
        return 0.0

    @abstractmethod
    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        """Grow each request's tree, and return the number of its nodes that are verified, the root included.

        Called again in the same step after passes of a head have added candidates.
        """

    def spend(self, cost: float) -> None:  # noqa: B027 - optional
        """Called after passes of a head, with their cost in plain steps, which counts in the speed-up.

        ``PassPricing`` bounds what passes lose.
        """

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:  # noqa: B027 - optional
        """Called after each step that included the sizer's requests; ``outcomes`` are theirs."""

    def forget(self) -> None:  # noqa: B027 - optional
        """Forget what the texts of earlier requests brought."""
