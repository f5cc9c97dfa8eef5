"""Tables of costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.costs import CostTable


@given(rises=st.lists(st.floats(0, 2), min_size=1, max_size=12))
def test_the_marginal_cost_is_the_least_that_a_round_costs_however_many_follow(rises: list[float]) -> None:
    costs = [0.0, 1.0]
    for rise in rises:
        costs.append(costs[-1] + rise)
    table = CostTable.of(costs)
    for width in range(1, len(costs) - 1):
        mean = [sum(rises[width - 1 : more]) / (more - width + 1) for more in range(width, len(rises) + 1)]
        assert table.marginal[width] == pytest.approx(min(mean))
    assert table.marginal[-1] == float("inf")
