"""The draft sizer: how many draft tokens pay in the next step.

A further round of nodes is verified while

    p > v · Δc(n)

- p: the sum of its nodes' probabilities to be accepted, over the number of rows;
- v: the speed-up, tokens of a row in the time of a plain step, in recent steps: an accepted token saves the time that a
  token takes. That maximises the tokens per second of all steps together (Dinkelbach 1967, "On Nonlinear Fractional
  Programming"); the highest speed-up of each step alone would give too many nodes to steps that win little;
- Δc(n): what the round costs, in plain steps (``specdec/costs.py``).

No draft is made that the loss budget can't lose whole.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from specdec.costs import CostModel
from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.loss_budget import LossBudget

_DOUBT = 0.05  # of a step's cost: what is known of a draft isn't better than that
_MEMORY = 0.98  # weight of earlier steps' speed after each new one
_FIRST_STEPS = 8.0  # plain ones that the speed-up begins with: the first few steps say little
_LEAST_PROBABILITY = 0.005  # of any node, also of those for which another row's draft makes room
_TRIAL_NODES = 4  # draft tokens of each step of a trial


class DraftSizer(ABC):
    """Decides how many nodes of each request's tree a step verifies: called once a step, in the methods' order.

    Attributes:
        is_plain: a skipped step has no draft tokens at all, forced text included: drafted steps are compared with it.
        cost: of the step under way, in plain steps, without that of passes of a head.
        speed_up: v.
        budget: what drafts, and passes of a head, may lose; None if nothing bounds it.
    """

    is_plain: bool = False
    budget: LossBudget | None = None
    cost: float = 1.0
    speed_up: float = 1.0

    def skips(self, num_rows: int) -> bool:
        """Begin a step; return True if at most forced text is drafted in it."""
        return False

    def min_probability(self, num_rows: int) -> float:
        """Return a bound below which no node of a step with ``num_rows`` requests may be."""
        return 0.0

    @abstractmethod
    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        """Grow each request's tree, and return the number of its nodes that are verified, the root included.

        Called again in the same step after passes of a head have added candidates.
        """

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome], spent: float = 0.0) -> None:  # noqa: B027 - optional
        """Called after each step; ``outcomes`` are the requests' own, ``spent`` the cost of a head's passes."""

    def forget(self) -> None:  # noqa: B027 - optional
        """Forget what the texts of earlier requests brought."""


class SpeedupSizer(DraftSizer):
    """Takes candidates while they are expected to save time.

    Args:
        costs: c(n), and which nodes a round has.
        loss: share of plain decoding's time that drafts may lose.
    """

    budget: LossBudget

    def __init__(self, costs: CostModel, loss: float) -> None:
        self._costs, self.budget = costs, LossBudget(loss, has_trials=costs.learns)
        self._num_others = 0  # rows of the last pass that had another strategy
        self._is_skipped, self._size = False, 1
        self.forget()

    def forget(self) -> None:
        self.budget.forget()
        self._tokens = self._time = _FIRST_STEPS  # of a row, in recent steps: the time is in plain steps

    @property
    def speed_up(self) -> float:  # type: ignore[override]  # read only
        return max(1.0, self._tokens / self._time)

    def skips(self, num_rows: int) -> bool:
        self.budget.begin()
        self.cost, self._size = 1.0, 1
        is_due = not (self.budget.trial or self._num_others) and self._costs.needs_plain(num_rows)
        self.is_plain = is_due or self.budget.trial == 1
        self._is_skipped = self.is_plain or self.budget.is_used_up
        return self._is_skipped

    def min_probability(self, num_rows: int) -> float:
        num_rows += self._num_others
        if self.budget.trial or (self._costs.is_padded and num_rows > 1):
            return _LEAST_PROBABILITY
        return max(_LEAST_PROBABILITY, num_rows * self.speed_up * self._costs.table(num_rows).min_marginal)

    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        self.budget.spend(1.0 - self.cost)  # of the sizes before passes
        num_rows, v = len(growths) + self._num_others, self.speed_up
        table, taken = self._costs.table(num_rows), list[Growth]()
        size, num_tokens = 1, 0.0  # draft tokens that are expected to be accepted
        best, gain, num_best = 1, -v * table.costs[1], 0
        for growing in self._costs.rounds(growths):
            if size >= len(table.costs) - 1 or not self.budget.may_spend(table.costs[size + 1] - 1.0):
                break
            probabilities = [growth.next_probability for growth in growing]
            p = sum(probabilities) / num_rows
            pays = p > max(0.0, v * table.marginal[size])
            if not (p > 0.0 and size <= _TRIAL_NODES if self.budget.trial else pays):
                break
            for growth, probability in zip(growing, probabilities, strict=True):
                if probability:
                    growth.take()
                    taken.append(growth)
            size, num_tokens = size + 1, num_tokens + p
            gained, doubt = num_tokens - v * table.costs[size], _DOUBT * v * table.costs[size] if best == 1 else 0.0
            if self.budget.trial or gained - doubt > gain:
                best, gain, num_best = size, gained, len(taken)
        self._size, self.cost = best, table.costs[best]
        self.budget.spend(self.cost - 1.0)
        num_excess = Counter(taken[num_best:])
        return [len(growth) - num_excess[growth] for growth in growths]

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome], spent: float = 0.0) -> None:
        num_rows = record.num_decoding
        self._num_others = num_rows - len(outcomes)
        is_drafted = any(outcome.tree is not None and len(outcome.tree) > 1 for outcome in outcomes)
        num_tokens = sum(max(1, len(outcome.tokens)) for outcome in outcomes) + self._num_others
        self._tokens = _MEMORY * self._tokens + num_tokens / num_rows
        self._time = _MEMORY * self._time + self.cost + spent
        if record.kind == "step" and record.is_warm and not self._num_others:  # else the time is others' as well
            self._costs.learn(record, is_plain=self._is_skipped and not is_drafted)
            if not self._is_skipped:  # what is known of its cost now
                self.budget.spend(self._costs.table(num_rows).at(self._size) - self.cost)
        num_accepted = sum(max(0, len(outcome.tokens) - 1) for outcome in outcomes) / num_rows if is_drafted else 0.0
        self.budget.end(num_accepted, has_paid=self._size > 1 + _TRIAL_NODES)
