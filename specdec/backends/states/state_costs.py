"""The costs of steps of models with recurrent states, which read *pending* tokens again.

Such a model reads pending tokens again in each pass, until a pass whose tokens are all accepted moves its checkpoint.
So a pass over p pending tokens and n of a draft costs c(p + n), rows that don't share a pass cost several, and a draft
is charged for the tokens that drafts leave pending. A plain step moves the checkpoint for certain. It is made instead
of a draft once reading again has cost more, since the last move, than the move does: its own cost less that of one
token with drafts. The sum of both costs is the least then, as for a stock that is ordered in lots (Harris 1913, "How
many parts to make at once").
"""

from collections.abc import Callable, Sequence

from specdec.costs import Costs, CostTable, StepCosts
from specdec.models.shared_passes import Pass, passes_of_step
from specdec.record import StepRecord

_MEMORY = 0.95  # weight of earlier steps after each new one


class StateCosts(StepCosts):
    """c(n) as it is learnt, with pending tokens.

    Args:
        pending: returns the committed tokens that each row of the last pass reads again.
    """

    def __init__(
        self, measured: Costs, max_size: int, learns: bool, pending: Callable[[], Sequence[int]] = tuple[int]
    ) -> None:
        super().__init__(measured, max_size, learns)
        self._pending = pending
        self._left = 0.0  # tokens that a draft leaves pending, in the mean of recent ones
        self._reread = 0.0  # cost of reading again since the last move
        self._cost, self._tokens = 1.0, 2.0  # in recent steps; at first as if drafts were worth while

    def table(self, num_rows: int) -> CostTable:
        table, pending = super().table(num_rows), [*self._pending()][:num_rows]
        if not (self._left or any(pending)):
            return table
        of_step = self._costs_of_step(table, pending or [0], num_rows)
        if any(pending):
            move = of_step[1] - table.at(1 + max(pending)) + table.costs[1] - self._cost / self._tokens
            if self._reread + of_step[2] - table.at(2) > move:
                return CostTable.of(of_step[:2])
        later = table.at(1 + round(self._left)) - table.costs[1]
        return CostTable.of([*of_step[:2], *(cost + later for cost in of_step[2:])])

    def learn(self, record: StepRecord, is_plain: bool) -> None:
        if record.num_passes == 1 and not (is_plain and record.num_reread):  # else it took longer than its size does
            super().learn(record, is_plain)
        table, num_read = super().table(record.num_rows), record.width - record.num_reread
        self._reread = 0.0 if num_read == 1 else self._reread + table.at(record.width) - table.at(num_read)
        self._cost = _MEMORY * self._cost + table.at(record.width)
        self._tokens = _MEMORY * self._tokens + sum(len(each.tokens) for each in record.outcomes) / record.num_rows
        if num_read > 1:
            left = max(self._pending(), default=0)
            self._left = _MEMORY * self._left + (1.0 - _MEMORY) * max(0, left - record.num_reread)

    def _costs_of_step(self, table: CostTable, pending: Sequence[int], num_rows: int) -> list[float]:
        """Return the costs of the next step by size: one pass for each group of rows that read about as many tokens."""
        plain, _ = passes_of_step(pending, [False] * len(pending))
        alone, joined = passes_of_step(pending, [True] * len(pending))
        num_others = num_rows - len(pending)

        def cost(passes: Sequence[Pass], size: int, others: int) -> float:
            total = 0.0
            for number, num_tokens in passes:
                own, rows = super(StateCosts, self).table(number + others), number + others
                in_plain_steps = self._measured.at(rows) / self._measured.at(num_rows)
                total += own.at(max(1, num_tokens + size)) * in_plain_steps
                others = 0
            return total

        fixed, others = cost(alone, 0, num_others), 0 if alone else num_others
        most = min(max((each.num_tokens for each in joined), default=0), len(table.costs) - 2)
        drafted = [fixed + cost(joined, size, others) for size in range(2, len(table.costs) - most)]
        return [0.0, cost(plain, 0, num_others), *drafted]
