"""Rows of hidden states, copied only where they lie apart."""

from collections.abc import Sequence

import torch


def rows_at(states: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return some rows, (rows, …); a view if they are consecutive. Copies of many rows take several threads."""
    begin, end = (rows[0], rows[-1] + 1) if rows else (0, 0)
    if list(rows) == [*range(begin, end)]:
        return states[begin:end]
    return states.index_select(0, torch.tensor(rows, device=states.device))
