"""The price of a head's passes in a merge: each level of its draft is computed only where it pays.

A head that drafts all levels in one pass has the price of that pass alone.

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
from itertools import pairwise
from operator import mul
from statistics import median_low
from time import perf_counter

from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.loss_budget import LossBudget, Pause
from specdec.strategies.auto.sizer import DraftSizer

_PRIOR_WON, _PRIOR_WEIGHT = 0.7, 4.0  # tokens won per unit of probability; the weight is in such units
_MEMORY = 0.98  # weight of earlier steps with passes after each new one
_MOST, _FEWEST = 7, 2  # passes whose times count, and that are needed


class PassPricing:
    """Decides before each pass of a part whether it runs.

    Args:
        budget: what drafts and passes may lose.
        clock: returns seconds.

    Attributes:
        began: when each pass of the step under way began, and the last one ended.
        cost: expected cost of the passes of the step under way, in plain steps.
        seconds: their time.
    """

    def __init__(self, budget: LossBudget, clock: Callable[[], float] = perf_counter) -> None:
        self._budget, self._clock, self._pause = budget, clock, Pause()
        self._plain_seconds = math.inf  # of a plain step of these requests alone
        self._costs = deque[float](maxlen=_MOST), deque[float](maxlen=_MOST)  # of first passes, of further ones
        self._forget()

    def _forget(self) -> None:
        """Forget the tokens that passes win and all costs but the last: one pass then shows whether costs fell."""
        self._won, self._probability = _PRIOR_WON * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        for costs in self._costs:
            while len(costs) >= _FEWEST:
                costs.popleft()

    def begin(self, drafts: Sequence[tuple[Growth, int]], rows: Sequence[int], sizer: DraftSizer) -> None:
        """Begin a step.

        Args:
            drafts: of each request, the growth of the other sources, and how many of its nodes pay.
            rows: those that the part drafts for.
            sizer: of these drafts.
        """
        self._drafts, self._draft_cost, self._speed_up = drafts, sizer.cost, sizer.speed_up
        self._rooms = [growth.room(size) for growth, size in (drafts[row] for row in rows)]
        self.began = list[float]()
        # Room times probability of these passes; their cost; one of them has an unknown cost.
        self._expected, self.cost, self._has_guessed = 0.0, 0.0, False
        is_paid = (self._pause.num_idle + 1) * self._budget.loss >= (self._cost(0) or 0.0)
        if self._pause.step(is_paid and self._budget.balance >= 0.0) == 1:
            self._forget()

    def pays(self, probabilities: Sequence[float]) -> bool:
        """Return True if the next pass pays and the budget has its cost; the pass then runs.

        Args:
            probabilities: for each request, that its text follows the path that the pass continues.
        """
        cost = self._cost(len(self.began))
        price, expected = cost or 0.0, sum(map(mul, self._rooms, probabilities)) / len(self._drafts)
        gains = expected * self._won / self._probability > self._speed_up * price
        if not gains or (cost is None and self._has_guessed) or not self._budget.may_spend(price):
            return False
        self._budget.spend(price)
        self._has_guessed |= cost is None
        self.began.append(self._clock())
        self._expected += expected
        self.cost += price
        return True

    def _cost(self, level: int) -> float | None:
        """Return the cost of a pass in plain steps; None if too few were seen."""
        costs = self._costs[min(level, 1)]
        return median_low(costs) if len(costs) >= _FEWEST else None

    def end(self) -> None:
        """End the passes of the step under way; called after the drafts were grown with the part's candidates."""
        self.began.append(self._clock())
        self.seconds = self.began[-1] - self.began[0]

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome], cost: float) -> None:
        """Called after each step that was begun.

        Args:
            outcomes: of the merge's requests, in the order of the drafts.
            cost: of the step without the passes, in plain steps.
        """
        plain = (record.total_seconds - self.seconds) / cost
        is_known = record.is_warm and plain > 0.0
        if is_known and record.kind == "step" and record.num_rows == len(outcomes):
            self._plain_seconds = plain
        plain = min(plain, self._plain_seconds)  # other requests and prompts take time as well
        passes = [*pairwise(self.began)] if is_known else []
        for level, (start, end) in enumerate(passes):
            self._costs[min(level, 1)].append((end - start) / plain)
        if passes:
            accepted = zip(self._drafts, outcomes, strict=False)
            num_before = sum(node < size for (growth, size), each in accepted for node in growth.path(each.tokens))
            won = (sum(outcome.num_accepted_tokens for outcome in outcomes) - num_before) / len(outcomes)
            self._won = _MEMORY * self._won + won - self._speed_up * (cost - self._draft_cost)
            self._probability = _MEMORY * self._probability + self._expected
            taken = sum(self._cost(level) or 0.0 for level in range(len(passes)))  # medians: a machine may be busy
            self._budget.spend(taken - self.cost)
            self._pause.begin_anew()
