"""Prices where rows are packed: what passes over so many nodes took, whosever they are."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.costs import Costs, group_of
from specdec.strategies.merging.packed_prices import PackedPrices

AT_FIRST = Costs((1, 201), (1.0, 2.0), 1.0)


def linear(num_nodes: int) -> float:
    return 14.0 + 0.8 * num_nodes


class Steps:
    """Prices, told of steps whose passes take what is said, and whose search for drafts takes no time or so much."""

    def __init__(self, takes: Callable[[int], float] = linear, searching: float = 0.0) -> None:
        self.prices = PackedPrices(AT_FIRST, 8)
        self.takes, self.searching = takes, searching

    def take(self, num_rows: int, drafted: int, times: int = 2, is_plain: bool = False) -> float | None:
        told = None
        for _ in range(times):
            searching = 0.0 if is_plain else self.searching
            seconds = self.takes(num_rows + drafted) + searching
            told = self.prices.note(num_rows, 1 + drafted, seconds, searching, is_plain)
        return told

    def at(self, num_rows: int, drafted: int) -> float:
        return self.prices.table(num_rows).costs[1 + drafted]


def test_before_anything_was_seen_costs_rise_as_those_at_first_do() -> None:
    steps = Steps()
    assert steps.at(1, 0) == 1.0
    assert steps.at(20, 10) == pytest.approx((1 + 29 / 200) / (1 + 19 / 200))


def test_steps_of_many_rows_tell_what_drafts_of_few_cost() -> None:
    steps = Steps()
    for num_rows in range(1, 13):
        steps.take(num_rows, 0)
    assert steps.at(2, 8) == pytest.approx(linear(10) / linear(2))
    assert steps.prices.plain(7) == pytest.approx(linear(7))


def test_beyond_the_largest_pass_costs_go_on_as_steeply_and_end_at_twice_its_nodes() -> None:
    steps = Steps()
    for num_rows in range(8, 13):
        steps.take(num_rows, 0)
    steps.take(16, 0)
    costs = steps.prices.table(16).costs
    assert len(costs) - 1 == 1 + 16 + 8
    assert costs[-1] == pytest.approx(linear(40) / linear(16))


def test_the_next_size_is_believed_cheaper_than_the_line_until_it_was_seen() -> None:
    steps = Steps()
    for num_nodes in (32, 64):
        steps.take(num_nodes, 0)
    above = group_of(33)[-1] - 32
    assert steps.at(32, above) < linear(32 + above) / linear(32) - 0.01
    steps.take(32, above)
    assert steps.at(32, above) == pytest.approx(linear(32 + above) / linear(32))


def test_where_passes_are_filled_up_to_multiples_each_node_costs_what_they_do() -> None:
    steps = Steps(lambda num_nodes: 10.0 * -(-num_nodes // 16))
    for drafted in range(42):
        steps.take(16, drafted, times=4)
    for num_nodes in (16, 17, 18, 31, 32, 33, 36, 48, 49):
        assert steps.at(16, num_nodes - 16) == pytest.approx(-(-num_nodes // 16))


def test_the_search_for_drafts_has_a_price_of_its_own_by_rows() -> None:
    steps = Steps(searching=4.0)
    steps.take(20, 0, is_plain=True)
    steps.take(20, 0, times=10)
    assert steps.prices.plain(20) == pytest.approx(linear(20))
    assert steps.at(20, 0) == pytest.approx(1 + 4.0 / linear(20))
    assert steps.at(10, 0) == pytest.approx((steps.prices.plain(10) + 2.0) / steps.prices.plain(10))


def test_a_slow_pass_is_the_machines_fault_where_a_larger_one_is_faster() -> None:
    steps = Steps()
    steps.take(24, 0)
    steps.takes = lambda num_nodes: 5 * linear(num_nodes)
    steps.take(18, 0)
    assert steps.prices.plain(18) == pytest.approx(linear(24))


def test_a_single_pass_of_a_size_is_not_believed() -> None:
    steps = Steps()
    steps.take(20, 0)
    before = steps.at(20, 16)
    steps.takes = lambda _: 1000.0
    steps.take(20, 16, times=1)
    assert steps.at(20, 16) == before


def test_what_seems_too_dear_to_be_tried_is_forgotten_in_time() -> None:
    steps = Steps()
    steps.take(20, 0)
    steps.takes = lambda num_nodes: 1000.0 if num_nodes > 20 else linear(num_nodes)
    steps.take(20, 12)
    assert steps.at(20, 12) > 20
    steps.take(20, 0, times=300)
    assert steps.at(20, 12) < 2


def test_a_plain_step_is_due_again_once_the_last_ones_are_long_ago() -> None:
    steps = Steps()
    steps.take(20, 0)
    steps.take(20, 30, times=40)
    assert not steps.prices.needs_plain(20)
    steps.take(20, 30, times=8)
    assert steps.prices.needs_plain(20)


def test_a_plain_step_is_due_until_passes_of_about_its_size_were_seen() -> None:
    steps = Steps()
    assert steps.prices.needs_plain(20)
    steps.take(20, 0)
    assert [steps.prices.needs_plain(num_rows) for num_rows in (10, 17, 20, 24, 30)] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_prices_that_dont_learn_keep_to_what_they_began_with() -> None:
    prices = PackedPrices(AT_FIRST, 8, learns=False)
    assert not prices.needs_plain(4)
    for _ in range(20):
        prices.note(4, 5, 100.0, 1.0, is_plain=False)
    assert prices.table(4).costs[5] == pytest.approx((1 + 7 / 200) / (1 + 3 / 200))


@given(
    passes=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 200), st.floats(1e-4, 10.0)), max_size=80),
    num_rows=st.integers(1, 64),
)
def test_whatever_was_seen_a_larger_step_is_no_cheaper(passes: list[tuple[int, int, float]], num_rows: int) -> None:
    prices = PackedPrices(AT_FIRST, 8)
    for rows, drafted, seconds in passes:
        prices.note(rows, 1 + drafted, seconds, 0.0, is_plain=drafted == 0)
    costs = list(prices.table(num_rows).costs)
    assert costs == sorted(costs)
