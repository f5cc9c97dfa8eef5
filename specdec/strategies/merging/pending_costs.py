"""The costs of steps of models with recurrent states, whose rows may need several passes."""

from collections.abc import Sequence

from specdec.models.shared_passes import Pass, passes_of_step
from specdec.strategies.merging.cost_model import CostModel, CostTable


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
