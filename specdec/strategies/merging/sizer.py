"""The draft sizer: how many draft tokens pay in the next step.

``SpeedupSizer`` decides for ``auto`` and merges. It lets the most probable candidates in, round by round, as long as
they are expected to save more time than they take. A round is one more node of every row, or of one row
(``cost_model.py``). An accepted token saves the time that a token takes in recent steps: that maximises the tokens per
second of all steps together (Dinkelbach 1967, "On Nonlinear Fractional Programming"). The highest speed-up of each step
alone would give too many nodes to steps that win little, and too few to those that win much.

A balance bounds what drafts can lose, however wrong costs or probabilities are. Each step adds ``loss`` plain steps, a
draft takes out what its pass costs beyond a plain one, and each accepted draft token adds one. No draft is made that
the balance can't lose whole, except for trials: the balance bounds losses and doesn't end gains, so after a pause small
drafts show what drafts cost and bring by then. What a trial loses is paid before the next one.

Models with recurrent states read *pending* tokens again in each pass, until a pass whose tokens are all accepted moves
their checkpoint. So a pass over p pending tokens and n of a draft costs c(p + n), rows that don't share a pass cost
several (``pending_costs.py``), and a draft is charged for the tokens that it is expected to leave pending. A plain step
moves the checkpoint for certain. It is made instead of a draft once reading again has cost more, since the last move,
than the move does: its own cost less that of one token with drafts. The sum of both costs is the least then, as for a
stock that is ordered in lots (Harris 1913, "How many parts to make at once").
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.cost_model import CostModel, CostTable
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.pending_costs import table_of_step

_FIRST_BALANCE = 2.0  # plain steps of one row: what a generator may lose before it knows better
_LARGEST_DEBT = 0.25  # so that drafts aren't out for ever after a bad time
_LARGEST_DEBT_OF_TRIALS = 8.0  # which are made whatever drafts are believed to cost
_RESUMES_AT = 0.1  # plus the cost of the search for drafts, once the balance was used up
_LARGEST_BALANCE = 4.0  # so that easy text doesn't pay for long stretches of hard text
_LEAST_GAIN = 1.05  # over a step without drafts: what is known of a draft isn't better than that
_MEMORY_OF_SPEED = 0.98  # weight of earlier steps after each new one
_FIRST_STEPS = 8.0  # plain ones that the speed-up begins with: the first few steps say little
_LEAST_PROBABILITY = 0.005  # of any node, also of those for which another row's draft makes room
_PAUSE, _LONGEST_PAUSE = 64, 512  # steps without a draft of that size before a trial; each trial doubles the next pause
_LONGEST_REST = 96  # steps, after which a loop reports its rows again
_TRIALS, _TRIAL_NODES = 2, 4  # steps of a trial, and draft tokens of each


class DraftSizer(ABC):
    """Seeks the largest expected gain of a step = 1 + sum of acceptance probabilities / rows - speed-up × c(n).

    c(n) is the cost of the step with n rounds of draft tokens, in plain steps, and the speed-up is the number of tokens
    of a row in the time of a plain step, in recent steps. A sizer defines ``sizes``, which decides how many nodes of
    each request's tree are verified.
    """

    is_plain: bool = False
    """True if a skipped step has no draft tokens at all, forced text included: drafted steps are compared with it."""

    pads_root: bool = False
    """True if a root alone is padded: a pass of the size of two tokens takes less time than a switch to one token."""

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


class SpeedupSizer(DraftSizer):
    """Takes candidates while they are expected to save time by measured costs, within a balance of losses.

    Args:
        costs: c(n), and which nodes a round has.
        loss: share of plain decoding's time that drafts may lose.

    Attributes:
        balance: plain steps, of as many rows as decode now, that drafts may lose now.
    """

    def __init__(self, costs: CostModel, loss: float) -> None:
        self._costs, self._loss = costs, loss
        self.balance = _FIRST_BALANCE
        self._num_rows = 1  # of the steps that the balance counts
        self._num_others = 0  # rows of the last pass that had another strategy
        self._tokens = self._time = _FIRST_STEPS  # of a row, in recent steps: the time is in plain steps
        self._spent = 0.0  # plain steps that passes of a head took, in the step under way
        self._charged = 0.0  # to the balance, for that step
        self._began_with = 0.0  # the balance before it
        self._is_out = False  # the balance was used up and has not recovered
        self._is_skipped = False  # nothing is searched for in the step under way
        self._num_undrafted, self._pause, self._num_trials = 0, _PAUSE, 0
        self._pending: Sequence[int] = ()  # by row
        self._leaves_pending = False  # rejected drafts do
        self._reread = self._reread_now = 0.0  # cost of pending tokens since the last move, and in the step under way

    def skips(self, num_rows: int, pending: Sequence[int] = ()) -> bool:
        """Begin a step; True if the balance is used up, or if a plain step is due to compare drafted ones with."""
        self._pending, self._leaves_pending = pending or [0] * num_rows, self._leaves_pending or any(pending)
        self._reread, self._reread_now = (self._reread + self._reread_now if any(pending) else 0.0), 0.0
        num_all = num_rows + self._num_others
        if num_all != self._num_rows:
            self.balance *= self._costs.plain(self._num_rows) / self._costs.plain(num_all)
            self._num_rows = num_all
        self.balance = min(_LARGEST_BALANCE, self.balance + self._loss)
        self.cost, self._spent, self._charged, self._began_with = 1.0, 0.0, 0.0, self.balance
        self.pads_root = False
        if (trial := self._trial()) != "none":
            self.is_plain = self._is_skipped = trial == "begins"  # with a plain step, to compare the others with
            return self._is_skipped
        self._is_out = self.balance < (self._resumes_at() if self._is_out else 0.0)
        self.is_plain = not self._num_others and self._costs.needs_plain(num_rows)
        self._is_skipped = self._is_out or self.is_plain
        return self._is_skipped

    def rest(self, num_rows: int) -> int:
        if not self._is_out or self._num_trials or not self._loss:
            return 0
        num_short = math.ceil((self._resumes_at() - self.balance) / self._loss) - 1
        before_trial = self._pause - 1 - self._num_undrafted
        if self.balance < 0.0:
            before_trial = max(before_trial, math.ceil(-self.balance / self._loss) - 1)
        num_steps = max(0, min(num_short, before_trial, _LONGEST_REST))
        self._num_undrafted += num_steps
        self.balance += num_steps * self._loss
        return num_steps

    def _resumes_at(self) -> float:
        """Return the balance at which drafts are made again after it was used up."""
        return _RESUMES_AT + self._costs.table(self._num_rows).costs[1] - 1.0

    def _trial(self) -> Literal["begins", "goes on", "none"]:
        """Return whether the step belongs to a trial, which follows a pause; fixed costs need none."""
        self._num_undrafted += 1
        if self._num_trials:
            self._num_trials -= 1
            if self._num_trials:
                return "goes on"
            self._num_undrafted, self._pause = 0, min(_LONGEST_PAUSE, 2 * self._pause)
        elif self._num_undrafted >= self._pause and self.balance >= 0.0 and not self._num_others and self._costs.learns:
            self._num_trials = 1 + _TRIALS
            return "begins"
        return "none"

    def min_probability(self, num_rows: int) -> float:
        """Return the probability of a node that can't pay, whatever else the step has."""
        num_rows += self._num_others
        if self._num_trials or (self._costs.is_padded and num_rows > 1):
            return _LEAST_PROBABILITY
        table = self._costs.table(num_rows)
        return max(_LEAST_PROBABILITY, num_rows * table.min_marginal * self._speed_up)

    @property
    def _speed_up(self) -> float:
        """Tokens in the time of a plain step, in recent steps; 1 at least, which plain steps have."""
        return max(1.0, self._tokens / self._time)

    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        """A further round pays while the sum of its probabilities exceeds the speed-up times its cost."""
        num_rows, speed_up = len(growths) + self._num_others, self._speed_up
        self.balance += self._charged  # of sizes before passes
        table = of_step = self._costs.table(num_rows)
        if self._leaves_pending:
            has_draft = [growth.next_probability > 0.0 for growth in growths]
            of_step = table_of_step(self._costs, self._pending, has_draft, self._num_others)
        costs, marginal = of_step.costs, of_step.marginal
        left = self._left(table, 0.0, 0.0)  # at least, by a rejected draft
        size, gained, best, num_kept = 1, 0.0, 1, 0
        value, step, num_expected = 1.0 - speed_up * costs[1], costs[1], 1.0
        taken = list[Growth]()  # by each node
        for growing in self._costs.rounds(growths):
            if size >= len(costs) - 1:
                break
            probabilities = [growth.next_probability for growth in growing]
            probability = sum(probabilities) / num_rows
            if not self._pays(size, probability, marginal[size] * speed_up, costs[size + 1] + left):
                break
            for growth, its_probability in zip(growing, probabilities, strict=True):
                if its_probability:
                    growth.take()
                    taken.append(growth)
            gained, size = gained + probability, size + 1
            cost = costs[size] + self._left(table, gained, probability)
            doubt = _LEAST_GAIN if best == 1 else 1.0
            if self._num_trials or 1.0 + gained - speed_up * cost * doubt > value:
                best, step, num_kept, num_expected = size, cost, len(taken), 1.0 + gained
                value = num_expected - speed_up * cost
        self._reread_now = costs[best] - table.costs[best]
        reread = table.over_plain(1 + max(self._pending, default=0))
        per_token = (step + self._spent - self._reread_now) / num_expected
        if best > 1 and self._moves(costs[1] - reread, per_token):
            best, num_kept = 1, 0
        can_pad = num_rows == best == 1 and self._costs.cost_of_switch(1, 1) > 0.0  # backends pad no other roots
        self.pads_root = can_pad and costs[1] > min(costs[1:3])
        self.cost = costs[2 if self.pads_root else best]
        self._charged = self.cost - 1.0
        self.balance -= self._charged
        num_excess = Counter(taken[num_kept:])
        return [len(growth) - num_excess[growth] for growth in growths]

    def _left(self, table: CostTable, gained: float, probability: float) -> float:
        """Return what it is expected to cost to read the tokens again that a step with a draft leaves pending.

        Args:
            table: of steps without pending tokens.
            gained: number of draft tokens that are expected to be accepted.
            probability: that all are.
        """
        if not self._leaves_pending:
            return 0.0
        return (1.0 - probability) * table.over_plain(2 + round(gained))

    def _moves(self, plain: float, per_token: float) -> bool:
        """Return True if a plain step is to move the checkpoint.

        Args:
            plain: cost of a plain step, without reading pending tokens again, in as many passes as it needs.
            per_token: cost of a token with drafts, likewise.
        """
        is_due = self._reread + self._reread_now > plain - per_token
        return is_due and any(self._pending) and not self._num_trials

    def spend(self, cost: float) -> None:
        self._spent += cost

    def _pays(self, size: int, probability: float, least: float, cost: float) -> bool:
        """Return True if a round pays and the balance has its cost, or if a trial has room for it.

        Args:
            cost: of the step with the round, that of reading again what a rejected draft leaves pending included.
        """
        if self._num_trials:
            return size <= _TRIAL_NODES and probability > 0.0
        return probability > max(0.0, least) and cost - 1.0 <= self.balance

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        num_rows = sum(not outcome.is_chunk for outcome in record.outcomes)  # chunks are no rows of the next step
        self._num_others = num_rows - len(outcomes)
        widest = max((len(outcome.tree) for outcome in outcomes if outcome.tree is not None), default=1)
        if widest > 1:
            self.balance += sum(max(0, len(outcome.tokens) - 1) for outcome in outcomes) / num_rows
        if record.kind == "step":
            num_tokens = sum(max(1, len(outcome.tokens)) for outcome in outcomes) + self._num_others
            self._tokens = _MEMORY_OF_SPEED * self._tokens + num_tokens / num_rows
            self._time = _MEMORY_OF_SPEED * self._time + self.cost + self._spent
        is_plain = self._is_skipped and widest == 1  # else it had forced text
        if widest > _TRIAL_NODES and not (self._num_trials or self._is_skipped):
            self._num_undrafted, self._pause = 0, _PAUSE
        if record.kind == "step" and record.is_warm and not self._num_others:  # else the time is others' as well
            size, searching = self._costs.size_of(record) + self.pads_root, record.seconds.get("propose", 0.0)
            is_one_pass = record.num_passes == 1  # several take longer than a step of that size does
            if is_one_pass and not (is_plain and record.num_reread):  # else it took longer than a plain step does
                self.balance -= self._costs.cost_of_switch(num_rows, size)
                self._costs.learn(num_rows, size, record.total_seconds, searching, is_plain)
            # The costs are those known now, and drafts cause reading again.
            if is_one_pass and (record.num_reread or not self._is_skipped):
                costs = self._costs.table(num_rows).costs
                self.balance += self._charged - (costs[min(size, len(costs) - 1)] - 1.0)
        least = -_LARGEST_DEBT_OF_TRIALS if self._num_trials else min(-_LARGEST_DEBT, self._began_with)
        self.balance = max(least, min(_LARGEST_BALANCE, self.balance))

    def forget(self) -> None:
        self.balance, self._num_rows = _FIRST_BALANCE, 1
        self._tokens = self._time = _FIRST_STEPS
        self._num_undrafted, self._pause, self._num_trials = 0, _PAUSE, 0
        self._leaves_pending = False
        self._reread = self._reread_now = 0.0
