"""The tokens that drafts leave pending in models with recurrent states, and what it costs to read them again.

Such a model reads *pending* tokens again in each pass, until a pass whose tokens are all accepted moves its checkpoint.
So a pass over p pending tokens and n of a draft costs c(p + n), rows that don't share a pass cost several, and a draft
is charged for the tokens that it is expected to leave pending. A plain step moves the checkpoint for certain. It is
made instead of a draft once reading again has cost more, since the last move, than the move does: its own cost less
that of one token with drafts. The sum of both costs is the least then, as for a stock that is ordered in lots (Harris
1913, "How many parts to make at once").
"""

from collections.abc import Sequence

from specdec.models.shared_passes import Pass, passes_of_step
from specdec.strategies.merging.cost_model import CostModel, CostTable
from specdec.strategies.merging.growth import Growth


class PendingTokens:
    """The pending tokens of a sizer's requests; without recurrent states there are none."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._by_row: Sequence[int] = ()
        self._are_left = False  # by rejected drafts, as far as is known
        self._reread = self._reread_now = 0.0  # cost of reading again since the last move, and in the step under way

    def begin(self, num_rows: int, pending: Sequence[int]) -> None:
        """Begin a step; ``pending`` has each row's tokens that are read again, or is empty."""
        self._by_row, self._are_left = pending or [0] * num_rows, self._are_left or any(pending)
        self._reread, self._reread_now = (self._reread + self._reread_now if any(pending) else 0.0), 0.0

    def table(self, table: CostTable, growths: Sequence[Growth], num_others: int) -> CostTable:
        """Return the costs of the step under way; ``table`` has those of a step without pending tokens."""
        if not self._are_left:
            return table
        has_draft = [growth.next_probability > 0.0 for growth in growths]
        return table_of_step(self._costs, self._by_row, has_draft, num_others)

    def cost_of_rejection(self, table: CostTable, gained: float, probability: float) -> float:
        """Return what it is expected to cost to read the tokens again that a step with a draft leaves pending.

        Args:
            table: of steps without pending tokens.
            gained: number of draft tokens that are expected to be accepted.
            probability: that all are.
        """
        return (1.0 - probability) * table.over_plain(2 + round(gained)) if self._are_left else 0.0

    def moves_checkpoint(self, table: CostTable, of_step: CostTable, size: int, cost: float, num_tokens: float) -> bool:
        """Return True if a plain step is to move the checkpoint, instead of one of the size with the largest gain.

        Call it in every step, whatever its size: it notes what reading again costs in this step.

        Args:
            table: of steps without pending tokens.
            of_step: of the step under way.
            size: the size with the largest gain, whose step has an expected ``cost`` and ``num_tokens``.
        """
        self._reread_now = of_step.costs[size] - table.costs[size]
        plain = of_step.costs[1] - table.over_plain(1 + max(self._by_row, default=0))  # without reading again
        per_token = (cost - self._reread_now) / num_tokens
        return any(self._by_row) and self._reread + self._reread_now > plain - per_token


def table_of_step(costs: CostModel, pending: Sequence[int], has_draft: Sequence[bool], num_others: int) -> CostTable:
    """Return the costs of a step by the size of its drafts, in plain steps of as many rows.

    Without pending tokens a plain step has one pass. A step with drafts has one for each group of rows that read about
    as many tokens, and those of rows without a draft; a plain step has one for each number of pending tokens.

    Args:
        pending: each row's committed tokens that are read again.
        has_draft: whether the row has draft tokens, unless the step is a plain one.
        num_others: rows of other strategies; they count in the step's first pass.
    """
    num_rows = len(pending) + num_others
    table, (alone, joined) = costs.table(num_rows), passes_of_step(pending, has_draft)
    most = min(max((each.num_tokens for each in joined), default=0), len(table.costs) - 2)
    if len(joined) == 1 and not alone and len(set(pending)) == 1:
        return CostTable(table.costs[most:], table.marginal[most:], table.min_marginal)

    def cost(passes: Sequence[Pass], size: int, others: int) -> float:
        total = 0.0
        for number, num_tokens in passes:
            own = costs.table(number + others).costs
            width = max(1, min(num_tokens + size, len(own) - 1))
            total += own[width] * costs.plain(number + others) / costs.plain(num_rows)
            others = 0
        return total

    plain, _ = passes_of_step(pending, [False] * len(pending))
    fixed, others = cost(alone, 0, num_others), 0 if alone else num_others
    drafted = [fixed + cost(joined, size, others) for size in range(2, len(table.costs) - most)]
    return CostTable.of([0.0, cost(plain, 0, num_others), *drafted])
