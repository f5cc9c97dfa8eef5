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

A step has three calls:

    skips   the balance is used up, or a plain step or a trial is due: nothing is searched for
    sizes   the size with the largest gain, by the costs of ``cost_model.py``; then no draft at all where a plain step
            moves a recurrent state (``pending_tokens.py``)
    learn   the balance, the speed-up and the costs after the step
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.cost_model import CostModel, CostTable
from specdec.strategies.merging.draft_sizer import DraftSizer
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.pending_tokens import PendingTokens

_FIRST_BALANCE = 2.0  # plain steps of one row: what a generator may lose before it knows better
_LARGEST_DEBT = 0.25  # so that drafts aren't out for ever after a bad time
_LARGEST_CHARGE = 1.0  # plain steps that a step is charged with for a change of sizes
_LARGEST_DEBT_OF_TRIALS = 8.0  # which are made whatever drafts are believed to cost
_RESUMES_AT = 0.1  # plus the cost of the search for drafts, once the balance was used up
_LARGEST_BALANCE = 16.0  # so that easy text pays for a stretch of hard text, but for no long one
_LEAST_GAIN = 1.05  # over a step without drafts: what is known of a draft isn't better than that
_MEMORY_OF_SPEED = 0.98  # weight of earlier steps after each new one
_FIRST_STEPS = 8.0  # plain ones that the speed-up begins with: the first few steps say little
_LEAST_PROBABILITY = 0.005  # of any node, also of those for which another row's draft makes room
_PAUSE, _LONGEST_PAUSE = 64, 512  # steps without a draft of that size before a trial; each trial doubles the next pause
_LONGEST_REST = 96  # steps, after which a loop reports its rows again
_TRIALS, _TRIAL_NODES = 2, 4  # steps of a trial, and draft tokens of each


@dataclass(frozen=True, slots=True)
class _Size:
    """A size of the step under way, and what is expected of it.

    Attributes:
        size: one more than its rounds.
        cost: in plain steps, that of reading its tokens again later included.
        num_tokens: of a row.
        num_taken: nodes of all rows, without the roots.
    """

    size: int
    cost: float
    num_tokens: float = 1.0
    num_taken: int = 0


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
        self._spent = 0.0  # for passes of a head in the step under way, in plain steps
        self._charged = 0.0  # to the balance, for that step
        self._began_with = 0.0  # the balance before it
        self._last = 0, 1  # number of rows and size of the last step whose time was learnt
        self._is_out = False  # the balance was used up and has not recovered
        self._is_skipped = False  # nothing is searched for in the step under way
        self._num_undrafted, self._pause, self._num_trials = 0, _PAUSE, 0
        self._pending = PendingTokens(costs)

    def skips(self, num_rows: int, pending: Sequence[int] = ()) -> bool:
        """Begin a step; True if the balance is used up, or if a plain step is due to compare drafted ones with."""
        self._pending.begin(num_rows, pending)
        num_all = num_rows + self._num_others
        if num_all != self._num_rows:
            self.balance *= self._costs.plain(self._num_rows) / self._costs.plain(num_all)
            self._num_rows = num_all
        self.balance = min(_LARGEST_BALANCE, self.balance + self._loss)
        self.cost, self._spent, self._charged, self._began_with = 1.0, 0.0, 0.0, self.balance
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
        """Return the balance from which on drafts are searched for again."""
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
        num_rows = len(growths) + self._num_others
        self.balance += self._charged  # of sizes before passes
        table = self._costs.table(num_rows)
        of_step = self._pending.table(table, growths, self._num_others)
        costs, taken = of_step.costs, list[Growth]()
        best = self._best(growths, table, of_step, taken)
        cost = best.cost + self._spent
        moves = self._pending.moves_checkpoint(table, of_step, best.size, cost, best.num_tokens)
        if best.size > 1 and not self._num_trials and moves:
            best = _Size(1, costs[1])
        self.cost = costs[best.size]
        self._charged = self.cost - 1.0
        self.balance -= self._charged
        num_excess = Counter(taken[best.num_taken :])
        return [len(growth) - num_excess[growth] for growth in growths]

    def _best(self, growths: Sequence[Growth], table: CostTable, of_step: CostTable, taken: list[Growth]) -> _Size:
        """Return the size with the largest expected gain that the balance can lose, or the largest of a trial.

        Args:
            table: of steps without pending tokens.
            of_step: of this step.
            taken: gets the growth of each node that a round has added, in order.
        """
        num_rows, speed_up, costs = len(growths) + self._num_others, self._speed_up, of_step.costs
        left = self._pending.cost_of_rejection(table, 0.0, 0.0)  # at least
        size, gained, best = 1, 0.0, _Size(1, costs[1])
        for growing in self._costs.rounds(growths):
            if size >= len(costs) - 1:
                break
            probabilities = [growth.next_probability for growth in growing]
            probability = sum(probabilities) / num_rows
            if not self._pays(size, probability, of_step.marginal[size] * speed_up, costs[size + 1] + left):
                break
            for growth, its_probability in zip(growing, probabilities, strict=True):
                if its_probability:
                    growth.take()
                    taken.append(growth)
            gained, size = gained + probability, size + 1
            left_now = self._pending.cost_of_rejection(table, gained, probability)
            found = _Size(size, costs[size] + left_now, 1.0 + gained, len(taken))
            doubt = _LEAST_GAIN if best.size == 1 else 1.0
            gain = found.num_tokens - best.num_tokens - speed_up * (found.cost * doubt - best.cost)
            if self._num_trials or gain > 0.0:
                best = found
        return best

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
        switched = 0.0
        if record.kind == "step" and record.is_warm and not self._num_others:  # else the time is others' as well
            size, searching = self._costs.size_of(record), record.seconds.get("propose", 0.0)
            is_one_pass = record.num_passes == 1  # several take longer than a step of that size does
            if is_one_pass and not (is_plain and record.num_reread):  # else it took longer than a plain step does
                switched = self._switched(num_rows, size)
                self._costs.learn(num_rows, size, record.total_seconds, searching, is_plain)
            # The costs are those known now, and drafts cause reading again.
            if is_one_pass and (record.num_reread or not self._is_skipped):
                self.balance += self._charged - (self._costs.table(num_rows).at(size) - 1.0)
        least = -_LARGEST_DEBT_OF_TRIALS if self._num_trials else min(-_LARGEST_DEBT, self._began_with)
        self.balance = max(least, min(_LARGEST_BALANCE, self.balance) - switched)

    def _switched(self, num_rows: int, size: int) -> float:
        """Return what drafts cost a step by the size of its pass; plain decoding pays where rows come and go."""
        (last_rows, last_size), self._last = self._last, (num_rows, size)
        if num_rows != last_rows or max(size, last_size) == 1:
            return 0.0
        return min(_LARGEST_CHARGE, self._costs.cost_of_switch(num_rows, size))

    def forget(self) -> None:
        self.balance, self._num_rows = _FIRST_BALANCE, 1
        self._tokens = self._time = _FIRST_STEPS
        self._num_undrafted, self._pause, self._num_trials = 0, _PAUSE, 0
        self._pending = PendingTokens(self._costs)
