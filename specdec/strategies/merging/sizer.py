"""The draft sizer: how many draft tokens pay in the next step.

    expected speed-up = (1 + sum of acceptance probabilities / rows) / c(n)

c(n) is the cost of a step with n rounds of draft tokens, in plain steps (``prices.py``). The sizer lets the most
probable candidates in, round by round, as long as the expected speed-up rises.

A balance bounds what drafts can lose, however wrong costs or probabilities are. Each step adds ``loss`` plain steps, a
draft takes out what its pass costs beyond a plain one, and each accepted draft token adds one. No draft is made that
the balance can't lose whole, except for trials: the balance bounds losses and doesn't end gains, so after a pause small
drafts show what drafts cost and bring by then. What a trial loses is paid before the next one.
"""

from collections.abc import Sequence
from typing import Literal

from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.prices import Prices

_FIRST_BALANCE = 2.0  # plain steps of one row: what a generator may lose before it knows better
_LARGEST_DEBT = 0.25  # so that drafts aren't out for ever after a bad time
_LARGEST_DEBT_OF_TRIALS = 8.0  # which are made whatever drafts are believed to cost
_RESUMES_AT = 0.1  # plus the cost of the search for drafts, once the balance was used up
_LARGEST_BALANCE = 4.0  # so that easy text doesn't pay for long stretches of hard text
_LEAST_GAIN = 1.05  # over a step without drafts: what is known of a draft isn't better than that
_LEAST_PROBABILITY = 0.005  # of any node, also of those for which another row's draft makes room
_PAUSE, _LONGEST_PAUSE = 64, 512  # steps without a draft of that size before a trial; each trial doubles the next pause
_TRIALS, _TRIAL_NODES = 2, 4  # steps of a trial, and draft tokens of each


class DraftSizer:
    """Decides how many nodes of each row's growth are forwarded in the next step.

    Attributes:
        balance: plain steps that drafts may lose now, for as many rows as decode now.
    """

    def __init__(self, prices: Prices, loss: float) -> None:
        self.prices, self.loss = prices, loss
        self.balance = _FIRST_BALANCE
        self._num_rows = 1  # of the steps that the balance counts
        self._num_others = 0  # rows of the last pass that had another strategy
        self._charged = 0.0  # to the balance, for the step under way
        self._began_with = 0.0  # the balance before it
        self._is_out = False  # the balance was used up and has not recovered
        self._is_plain = False  # nothing is drafted in the step under way
        self._num_undrafted, self._pause, self._num_trials = 0, _PAUSE, 0

    def skips(self, num_rows: int) -> bool:
        """Begin a step; True if nothing is drafted in it, and the search for drafts is skipped.

        Either the balance is used up, since the search for drafts takes time as well, or a plain step is due that
        drafted ones are compared with.
        """
        num_all = num_rows + self._num_others
        if num_all != self._num_rows:
            self.balance *= self.prices.plain(self._num_rows) / self.prices.plain(num_all)
            self._num_rows = num_all
        self.balance = min(_LARGEST_BALANCE, self.balance + self.loss)
        self._charged, self._began_with = 0.0, self.balance
        if (trial := self._trial()) != "none":
            self._is_plain = trial == "begins"  # with a plain step, which the others are compared with
            return self._is_plain
        enough = _RESUMES_AT + self.prices.table(num_all).costs[1] - 1.0
        self._is_out = self.balance < (enough if self._is_out else 0.0)
        self._is_plain = self._is_out or (not self._num_others and self.prices.needs_plain(num_rows))
        return self._is_plain

    def _trial(self) -> Literal["begins", "goes on", "none"]:
        """Return whether the step belongs to a trial, which follows a pause."""
        self._num_undrafted += 1
        if self._num_trials:
            self._num_trials -= 1
            if self._num_trials:
                return "goes on"
            self._num_undrafted, self._pause = 0, min(_LONGEST_PAUSE, 2 * self._pause)
        elif self._num_undrafted >= self._pause and self.balance >= 0.0 and not self._num_others:
            self._num_trials = 1 + _TRIALS
            return "begins"
        return "none"

    def least_probability(self, num_rows: int) -> float:
        """Return a bound that no node of a step with ``num_rows`` rows may be below, whatever else the step has."""
        num_rows += self._num_others
        if self._num_trials or (self.prices.rounds.shares_room and num_rows > 1):
            return _LEAST_PROBABILITY
        table = self.prices.table(num_rows)
        return max(_LEAST_PROBABILITY, num_rows * table.least / table.costs[1])

    def sizes(self, growths: Sequence[Growth], limits: Sequence[int]) -> list[int]:
        """Grow the rows' trees, and return how many nodes of each to forward, the root included.

        A further round pays while the sum of its probabilities exceeds the speed-up so far times what it costs.

        Args:
            limits: the most draft tokens of each tree.
        """
        num_rows = len(growths) + self._num_others
        table = self.prices.table(num_rows)
        costs, floors = table.costs, table.floors
        rounds = self.prices.rounds(growths, limits)
        place, gained, best, speed = 1, 0.0, 1, 1.0 / costs[1]
        while place < len(costs) - 1 and (growing := rounds.next()):
            probability = sum([growth.next_chance for growth in growing]) / num_rows
            if not self._pays(place, probability, floors[place] * speed, costs[place + 1]):
                break
            for growth in growing:
                if growth.next_chance:
                    growth.take()
            gained, place = gained + probability, place + 1
            speed_up = (1.0 + gained) / costs[place]
            if self._num_trials or speed_up > speed * (_LEAST_GAIN if best == 1 else 1.0):
                best, speed = place, speed_up
        self._charged = costs[best] - 1.0
        self.balance -= self._charged
        return rounds.sizes(best - 1)

    def _pays(self, place: int, probability: float, least: float, cost: float) -> bool:
        """Return True if a round pays and the balance has its cost, or if a trial has room for it."""
        if self._num_trials:
            return place <= _TRIAL_NODES and probability > 0.0
        return probability > least and cost - 1.0 <= self.balance

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Note what a step took, and what its drafts brought.

        Args:
            outcomes: those of the sizer's own rows.
        """
        num_rows, self._num_others = record.num_rows, record.num_rows - len(outcomes)
        widest = max((len(outcome.tree) for outcome in outcomes if outcome.tree is not None), default=1)
        if widest > 1:
            self.balance += sum(max(0, len(outcome.tokens) - 1) for outcome in outcomes) / num_rows
        if widest > _TRIAL_NODES and not self._num_trials:
            self._num_undrafted, self._pause = 0, _PAUSE
        if record.kind == "step" and record.is_warm and not self._num_others:  # else the time is others' as well
            place = self.prices.rounds.place(record)
            searching = record.seconds.get("propose", 0.0)
            self.prices.note(num_rows, place, record.total_seconds, searching, self._is_plain)
            if not self._is_plain:  # what is charged is what it turns out to be
                costs = self.prices.table(num_rows).costs
                self.balance += self._charged - (costs[min(place, len(costs) - 1)] - 1.0)
        least = -_LARGEST_DEBT_OF_TRIALS if self._num_trials else min(-_LARGEST_DEBT, self._began_with)
        self.balance = max(least, min(_LARGEST_BALANCE, self.balance))

    def forget(self) -> None:
        """Forget what the texts of earlier requests brought."""
        self.balance, self._num_rows = _FIRST_BALANCE, 1
        self._num_undrafted, self._pause, self._num_trials = 0, _PAUSE, 0
