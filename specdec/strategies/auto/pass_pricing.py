"""The price of a head's passes in a merge: each level of its draft is computed only where it pays.

    room × probability × tokens won per unit of these > v × cost of the pass

- room: the probability that no candidate of the other sources comes next. Their tree is grown first.
- probability: the head's own, that the text follows the path that the pass continues.
- tokens won: accepted tokens beyond the other sources' tree, less what the nodes added to that tree cost.
- v: the speed-up, tokens in the time of a plain step (``sizer.py``).
- cost: time of the pass over that of a plain step, in recent steps.

What is unknown is assumed in favour of the pass, within the merge's loss budget. After a pause without passes, once the
budget's share of it is worth a pass, what was learnt is forgotten, so they are tried again.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from time import perf_counter

from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.loss_budget import LossBudget, Pause
from specdec.tree import ROOT

_PRIOR_WON, _PRIOR_WEIGHT = 0.7, 4.0  # tokens won per unit of probability; the weight is in such units
_MEMORY = 0.98  # weight of earlier steps with passes after each new one
_MOST, _FEWEST = 7, 2  # passes whose times count, and that are needed


@dataclass(frozen=True, slots=True)
class SizedDrafts:
    """Grown trees, of which the first ``sizes`` nodes pay; ``cost`` is that of a step with them, in plain steps."""

    growths: Sequence[Growth]
    sizes: Sequence[int]
    cost: float

    def room(self, row: int) -> float:
        """Return the probability that the next token of a request is none of its tree's."""
        growth = self.growths[row]
        covered = [growth.probabilities[node] for node in range(1, self.sizes[row]) if growth.parents[node] == ROOT]
        return max(0.0, 1.0 - sum(covered))

    def num_accepted(self, outcomes: Sequence[Outcome]) -> int:
        """Return the number of draft tokens that these trees would have got accepted."""
        rows = zip(self.growths, self.sizes, outcomes, strict=False)
        return sum(node < size for growth, size, outcome in rows for node in growth.path(outcome.tokens))


class PassPricing:
    """Decides before each pass of a part whether it runs.

    Args:
        budget: what drafts and passes may lose.
        clock: returns seconds.

    Attributes:
        cost: expected cost of the passes of the step under way, in plain steps.
        seconds: their time.
    """

    def __init__(self, budget: LossBudget, clock: Callable[[], float] = perf_counter) -> None:
        self._budget, self._clock, self._pause = budget, clock, Pause()
        self._num_idle = 0  # steps since a pass
        self._plain_seconds = math.inf  # of a plain step of these requests alone
        self._costs = deque[float](maxlen=_MOST), deque[float](maxlen=_MOST)  # of first passes, of further ones
        self._forget()
        self._begin_step()

    def _forget(self) -> None:
        """Forget the tokens that passes win and all costs but the last: one pass then shows whether costs fell."""
        self._won, self._probability = _PRIOR_WON * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self._costs = tuple(deque([*costs][-1:], _MOST) for costs in self._costs)  # type: ignore[assignment]

    def _begin_step(self) -> None:
        self._began = list[float]()  # each pass of the step under way, and the end of the last one
        self._expected = 0.0  # room times probability, of all these passes
        self._has_guessed = False  # one of these passes has an unknown cost
        self.cost = self.seconds = 0.0

    def begin(self, drafts: SizedDrafts, rows: Sequence[int], speed_up: float) -> None:
        """Begin a step.

        Args:
            drafts: of the other sources.
            rows: those that the part drafts for.
            speed_up: v.
        """
        self._begin_step()
        self._before = self._after = drafts
        self._rooms, self._speed_up = [drafts.room(row) for row in rows], speed_up
        self._num_idle += 1
        may_try = self._num_idle * self._budget.loss >= (self._cost(0) or 0.0)
        if self._pause.step(may_try and self._budget.balance >= 0.0) == 1:
            self._forget()

    def pays(self, probabilities: Sequence[float]) -> bool:
        """Return True if the next pass pays and the budget has its cost; the pass then runs.

        Args:
            probabilities: for each request, that its text follows the path that the pass continues.
        """
        cost = self._cost(len(self._began))
        if cost is None and self._has_guessed:
            return False
        expected = sum(room * each for room, each in zip(self._rooms, probabilities, strict=True))
        expected /= len(self._before.sizes)
        price = cost or 0.0
        gains = expected * self._won / self._probability > self._speed_up * price
        if not gains or not self._budget.may_spend(price):
            return False
        self._budget.spend(price)
        self._has_guessed |= cost is None
        self._began.append(self._clock())
        self._expected += expected
        self.cost += price
        return True

    def _cost(self, level: int) -> float | None:
        """Return the cost of a pass in plain steps; None if too few were seen."""
        costs = self._costs[min(level, 1)]
        return median_low(costs) if len(costs) >= _FEWEST else None

    @property
    def has_run(self) -> bool:
        """True if a pass has run in the step under way."""
        return bool(self._began)

    def end(self, drafts: SizedDrafts) -> None:
        """End the passes of the step under way; ``drafts`` are those with the part's candidates."""
        self._after = drafts
        if self._began:
            self._began.append(self._clock())
            self.seconds = self._began[-1] - self._began[0]

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome], cost: float) -> None:
        """Called after each step.

        Args:
            outcomes: of the merge's requests, in the order of the drafts.
            cost: of the step without the passes, in plain steps.
        """
        plain = (record.total_seconds - self.seconds) / cost
        if record.is_warm and plain > 0.0:
            if record.kind == "step" and record.num_rows == len(outcomes):
                self._plain_seconds = plain
            plain = min(plain, self._plain_seconds)  # other requests and prompts take time as well
            if costs := [(end - start) / plain for start, end in pairwise(self._began)]:
                self._learn(costs, outcomes)
        self._begin_step()

    def _learn(self, costs: Sequence[float], outcomes: Sequence[Outcome]) -> None:
        """Learn from passes of these costs, in plain steps."""
        won = (self._after.num_accepted(outcomes) - self._before.num_accepted(outcomes)) / len(outcomes)
        won -= self._speed_up * (self._after.cost - self._before.cost)
        self._won = _MEMORY * self._won + won
        self._probability = _MEMORY * self._probability + self._expected
        for level, cost in enumerate(costs):
            self._costs[min(level, 1)].append(cost)
        taken = sum(self._cost(level) or 0.0 for level in range(len(costs)))  # medians, since a machine may be busy
        self._budget.spend(taken - self.cost)
        self._num_idle = 0
        self._pause.begin_anew()
