"""The passes that rows with recurrent states share, and the costs of steps, which read *pending* tokens again.

Such a model reads pending tokens again in each pass, until a pass whose tokens are all accepted moves its checkpoint.
So a pass over p pending tokens and n of a draft costs c(p + n), rows that don't share a pass cost several, and a draft
is charged for the tokens that drafts leave pending. A plain step moves the checkpoint for certain. It is made instead
of a draft once reading again has cost more, since the last move, than the move does: its own cost less that of one
token with drafts. The sum of both costs is the least then, as for a stock that is ordered in lots (Harris 1913, "How
many parts to make at once").
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specdec.backends.placement import cheapest_runs
from specdec.costs import Costs, CostTable, StepCosts
from specdec.record import StepRecord

MOST_PENDING = 16  # tokens; not tuned: more are read again more often, fewer need more passes of their own
_PASS = 8  # not tuned: on a CPU, a pass over one token takes as long as this many further tokens in it, or longer
_MEMORY = 0.95  # weight of earlier steps after each new one


class Pass(NamedTuple):
    """A pass of some rows, each padded to ``num_tokens``."""

    num_rows: int
    num_tokens: int


def shared_passes(lengths: Sequence[int], is_shared: bool = True) -> list[range]:
    """Return for each pass the places of its rows, such that all passes together take the least time.

    Rows are padded to the longest of their pass, and a pass costs as much as ``_PASS`` tokens of a row.

    Args:
        lengths: the tokens that each row reads, descending.
        is_shared: False if each row has a pass of its own.
    """
    return cheapest_runs(lengths, _PASS) if is_shared else [range(place, place + 1) for place in range(len(lengths))]


def passes_of_step(pending: Sequence[int], has_draft: Sequence[bool]) -> tuple[list[Pass], list[Pass]]:
    """Return the passes of a step of a model with recurrent states.

    Rows without a draft, whose checkpoints move, aren't padded. ``StatefulCache`` does the same, with two exceptions
    that aren't modelled: Mamba-2's rows on a CPU are padded without drafts too, and rows that can't share passes are
    read alone.

    Args:
        pending: each row's committed tokens that are read again.
        has_draft: whether the row has draft tokens.

    Returns:
        The passes without drafts; and those with drafts, in which ``num_tokens`` doesn't count the draft and its root.
    """
    rows = [*zip(pending, has_draft, strict=True)]
    alone = [number + 1 for number, is_drafted in rows if not is_drafted or number + 1 >= MOST_PENDING]
    # The checkpoint, once moved, is after the root.
    drafted = [-1 if number + 1 >= MOST_PENDING else number for number, is_drafted in rows if is_drafted]
    drafted.sort(reverse=True)
    joined = [Pass(len(places), drafted[places[0]]) for places in shared_passes(drafted)]
    return [Pass(num_rows, length) for length, num_rows in Counter(alone).items()], joined


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
