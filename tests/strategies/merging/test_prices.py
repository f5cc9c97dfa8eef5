"""Tables of prices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.strategies.merging.prices import Table


@given(rises=st.lists(st.floats(0, 2), min_size=1, max_size=12))
def test_the_floor_is_what_a_node_costs_at_least_however_many_more_come(rises: list[float]) -> None:
    costs = [0.0, 1.0]
    for rise in rises:
        costs.append(costs[-1] + rise)
    table = Table.of(costs)
    for width in range(1, len(costs) - 1):
        mean = [sum(rises[width - 1 : more]) / (more - width + 1) for more in range(width, len(rises) + 1)]
        assert table.floors[width] == pytest.approx(min(mean))
    assert table.floors[-1] == float("inf")
