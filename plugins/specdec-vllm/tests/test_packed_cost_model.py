"""Costs and drafts where rows are packed: a pass takes what its nodes take, whichever rows they are from."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specdec_vllm.packed_cost_model import PackedCostModel, group_of
from specdec_vllm.sizer_by_rows import SizerByRows

from specdec import DraftTree
from specdec.costs import Costs
from specdec.record import Outcome, StepRecord
from specdec.strategies import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step
AT_FIRST = Costs((1, 201), (1.0, 2.0), 1.0)


def linear(num_nodes: int) -> float:
    return 14.0 + 0.8 * num_nodes


def learn(
    model: PackedCostModel, num_rows: int, drafted: int, seconds: float, searching: float, is_plain: bool
) -> None:
    """Have a model learn from a step whose first row has all draft tokens."""
    tree = DraftTree(0)
    tree.add_chain(0, range(1, drafted + 1))
    outcomes = (Outcome(ANY_REQUEST, tree=tree), *[Outcome(ANY_REQUEST)] * (num_rows - 1))
    model.learn(StepRecord("step", outcomes, {"propose": searching, "forward": seconds - searching}), is_plain)


class Steps:
    """A cost model that learns from steps of given times, and given times of the search for drafts."""

    def __init__(self, takes: Callable[[int], float] = linear, searching: float = 0.0) -> None:
        self.model = PackedCostModel(AT_FIRST, 8)
        self.takes, self.searching = takes, searching

    def take(self, num_rows: int, drafted: int, times: int = 2, is_plain: bool = False) -> None:
        for _ in range(times):
            searching = 0.0 if is_plain else self.searching
            seconds = self.takes(num_rows + drafted) + searching
            learn(self.model, num_rows, drafted, seconds, searching, is_plain)

    def at(self, num_rows: int, drafted: int) -> float:
        return self.model.table(num_rows).costs[1 + drafted]


def test_before_anything_was_seen_costs_rise_as_those_at_first_do() -> None:
    steps = Steps()
    assert steps.at(1, 0) == 1.0
    assert steps.at(20, 10) == pytest.approx((1 + 29 / 200) / (1 + 19 / 200))


def test_steps_of_many_rows_measure_what_drafts_of_few_cost() -> None:
    steps = Steps()
    for num_rows in range(1, 13):
        steps.take(num_rows, 0)
    assert steps.at(2, 8) == pytest.approx(linear(10) / linear(2))
    assert steps.model._costs.at(7) == pytest.approx(linear(7))


def test_beyond_the_largest_pass_costs_go_on_as_steeply_and_end_at_twice_its_nodes() -> None:
    steps = Steps()
    for num_rows in range(8, 13):
        steps.take(num_rows, 0)
    steps.take(16, 0)
    costs = steps.model.table(16).costs
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


def test_the_search_for_drafts_has_a_cost_of_its_own_by_rows() -> None:
    steps = Steps(searching=4.0)
    steps.take(20, 0, is_plain=True)
    steps.take(20, 0, times=10)
    assert steps.model._costs.at(20) == pytest.approx(linear(20))
    assert steps.at(20, 0) == pytest.approx(1 + 4.0 / linear(20))
    assert steps.at(10, 0) == pytest.approx((steps.model._costs.at(10) + 2.0) / steps.model._costs.at(10))


def test_a_slow_pass_is_the_machines_fault_where_a_larger_one_is_faster() -> None:
    steps = Steps()
    steps.take(24, 0)
    steps.takes = lambda num_nodes: 5 * linear(num_nodes)
    steps.take(18, 0)
    assert steps.model._costs.at(18) == pytest.approx(linear(24))


def test_a_single_pass_of_a_size_is_not_believed() -> None:
    steps = Steps()
    steps.take(20, 0)
    before = steps.at(20, 16)
    steps.takes = lambda _: 1000.0
    steps.take(20, 16, times=1)
    assert steps.at(20, 16) == before


def test_what_seems_too_expensive_to_be_tried_is_forgotten_in_time() -> None:
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
    assert not steps.model.needs_plain(20)
    steps.take(20, 30, times=8)
    assert steps.model.needs_plain(20)


def test_a_plain_step_is_due_until_passes_of_about_its_size_were_seen() -> None:
    steps = Steps()
    assert steps.model.needs_plain(20)
    steps.take(20, 0)
    assert [steps.model.needs_plain(num_rows) for num_rows in (10, 17, 20, 24, 30)] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_costs_that_dont_learn_stay_as_they_began() -> None:
    model = PackedCostModel(AT_FIRST, 8, learns=False)
    assert not model.needs_plain(4)
    for _ in range(20):
        learn(model, 4, 4, 100.0, 1.0, is_plain=False)
    assert model.table(4).costs[5] == pytest.approx((1 + 7 / 200) / (1 + 3 / 200))


@given(
    passes=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 200), st.floats(1e-4, 10.0)), max_size=80),
    num_rows=st.integers(1, 64),
)
def test_whatever_was_seen_a_larger_step_is_no_cheaper(passes: list[tuple[int, int, float]], num_rows: int) -> None:
    model = PackedCostModel(AT_FIRST, 8)
    for rows, drafted, seconds in passes:
        learn(model, rows, drafted, seconds, 0.0, is_plain=drafted == 0)
    costs = list(model.table(num_rows).costs)
    assert costs == sorted(costs)


@given(num_nodes=st.integers(1, 5000))
def test_groups_are_eight_between_powers_of_two_and_leave_no_number_out(num_nodes: int) -> None:
    group = group_of(num_nodes)
    assert num_nodes in group
    assert {group_of(each) for each in group} == {group}
    assert group_of(group.stop).start == group.stop
    assert group[-1] % len(group) == 0, "it ends where passes do that are filled up"
    assert len(group) == 1 or len(group) <= num_nodes / 8


probabilities = st.lists(st.floats(0.01, 1.0), max_size=5)


@given(rows=st.lists(st.tuples(probabilities, st.integers(0, 6)), min_size=1, max_size=4), num_rounds=st.integers(0, 8))
def test_rounds_give_the_most_probable_drafts_of_any_number_of_nodes(
    rows: Sequence[tuple[list[float], int]], num_rounds: int
) -> None:
    """Against all ways to share the nodes."""
    growths = [FixedGrowth(row, limit) for row, limit in rows]
    num_taken = 0
    for (growth,) in islice(PackedCostModel(AT_FIRST, 8).rounds(growths), num_rounds):
        growth.take()
        num_taken += 1
    ordered = [sorted(row, reverse=True)[:limit] for row, limit in rows]
    assert num_taken == min(num_rounds, sum(map(len, ordered)))
    ways = product(*(range(len(row) + 1) for row in ordered))
    best = max(
        sum(sum(row[:count]) for row, count in zip(ordered, way, strict=True)) for way in ways if sum(way) == num_taken
    )
    assert abs(sum(sum(growth.probabilities[1:]) for growth in growths) - best) < 1e-9


def recorded(widths: Sequence[int], accepted: Sequence[int], seconds: float, searching: float) -> StepRecord:
    """A step that verified chains and accepted some of their tokens."""
    outcomes = []
    for width, count in zip(widths, accepted, strict=True):
        tree = DraftTree(0)
        tree.add_chain(0, range(1, width))
        outcomes.append(Outcome(ANY_REQUEST, tree=tree, path=tuple(range(count + 1)), tokens=(1,) * (count + 1)))
    return StepRecord("step", tuple(outcomes), {"propose": searching, "forward": seconds}, width=max(widths))


@given(
    rows=st.lists(probabilities, min_size=1, max_size=3),
    per_node=st.floats(0.0, 0.5),
    speed_up=st.floats(1.0, 4.0),
)
def test_the_sizes_are_those_of_largest_expected_gain(
    rows: list[list[float]], per_node: float, speed_up: float
) -> None:
    """Against every way to share every number of nodes."""
    costs = Costs((1, 101), (3.0, 3.0 * (1 + 100 * per_node)), 3.0)
    ordered = [sorted(row, reverse=True) for row in rows]

    def cost(num_drafted: int) -> float:
        return costs.at(len(rows) + num_drafted) / costs.at(len(rows))

    def gain(sizes: Sequence[int]) -> float:
        gained = sum(sum(row[:size]) for row, size in zip(ordered, sizes, strict=True))
        return 1 + gained / len(rows) - speed_up * cost(sum(sizes))

    kept = SpeedupSizer(PackedCostModel(costs, 10, learns=False), 0.0)
    kept.budget.balance, kept._tokens, kept._time = 4.0, speed_up, 1.0
    sizes = [size - 1 for size in kept.sizes([FixedGrowth(row) for row in rows])]
    every = product(*(range(len(row) + 1) for row in rows))
    best = max((way for way in every if cost(sum(way)) <= 5.0), key=gain)
    doubt = 0.0 if any(sizes) else 0.05 * speed_up * cost(sum(best))
    assert gain(sizes) >= gain(best) - doubt - 1e-9


class Packing:
    """Steps of packed rows on a machine of known costs: the time that they took, and that plain ones would have."""

    def __init__(self, takes: Callable[[int], float], searching: float = 0.0) -> None:
        self.kept = SizerByRows(PackedCostModel(Costs((1, 201), (1.0, 2.0), 1.0), 8), loss=0.01)
        self.takes, self.searching = takes, searching
        self.spent = self.plain = 0.0
        self.num_drafted = 0
        self.unread = 0.0  # seconds of the first search in the texts

    def step(self, num_rows: int, accepts: bool, speed: float = 1.0) -> None:
        rests = self.kept.skips(num_rows)
        growths = [FixedGrowth([0.5, 0.2]) for _ in range(num_rows)]
        sizes = [1] * num_rows if rests else self.kept.sizes(growths)
        accepted = [int(size > 1 and accepts) for size in sizes]
        forward, searching = self.takes(sum(sizes)) / speed, 0.0
        if not rests:
            searching, self.unread = self.searching / speed + self.unread, 0.0
        record = recorded(sizes, accepted, forward, searching)
        self.kept.learn(record, record.outcomes)
        self.spent += forward + searching
        self.plain += self.takes(num_rows) / speed * (1 + sum(accepted) / num_rows)
        self.num_drafted += max(sizes) > 1


def cases() -> Iterator[Any]:
    """Yield a cost of drafts, how often one is accepted and a cost of the search: by day each pair of the first two."""
    for i, takes in enumerate([0.0, 0.02, 0.2, 1.0, "stairs"]):
        for j, accepts_every in enumerate([0, 2, 5]):
            for k, searching in enumerate([0.0, 0.3]):
                marks = [pytest.mark.nightly] if (i + j + k) % 2 else []
                yield pytest.param(takes, accepts_every, searching, marks=marks)


@pytest.mark.parametrize(("takes", "accepts_every", "searching"), [*cases()])
def test_the_loss_is_bounded_whatever_passes_cost(takes: float | str, accepts_every: int, searching: float) -> None:
    packing = Packing(lambda nodes: 1.0 + (-(-nodes // 8) if isinstance(takes, str) else takes * nodes), searching)
    for step in range(3000):
        packing.step(1 + step // 100 % 8, accepts_every > 0 and step % accepts_every == 0)
    assert packing.spent <= 1.03 * packing.plain + 5.0 * packing.takes(8)


def test_reading_new_texts_counts_as_a_loss() -> None:
    packing = Packing(lambda nodes: 1.0 + 0.5 * nodes, searching=0.1)
    for step in range(1500):
        if step % 100 == 0:
            packing.unread = 6.0 * packing.takes(8)
        packing.step(8, accepts=False)
    assert packing.spent <= 1.03 * packing.plain + 10.0 * packing.takes(8)


def test_drafts_come_back_soon_after_a_long_text_was_read() -> None:
    """A loss of 0.01 would take 10,000 steps to make up for it."""
    packing = Packing(lambda nodes: 1.0 + 0.05 * nodes, searching=0.01)
    for _ in range(100):
        packing.step(1, accepts=True)
    packing.unread, packing.num_drafted = 100.0 * packing.takes(1), 0
    for _ in range(500):
        packing.step(1, accepts=True)
    assert packing.unread == 0.0
    assert packing.num_drafted > 50


def test_what_drafts_lose_with_many_rows_is_no_reason_to_make_none_with_few() -> None:
    packing = Packing(lambda nodes: 1.0 + 0.5 * nodes)
    for _ in range(400):
        packing.step(8, accepts=False)
    packing.num_drafted = 0
    for _ in range(20):
        packing.step(1, accepts=True)
    num_with_few = packing.num_drafted
    for _ in range(20):
        packing.step(8, accepts=False)
    assert num_with_few > 10
    assert packing.num_drafted == num_with_few, "what is gained with few isn't there to be lost with many"


@pytest.mark.parametrize("searching", [0.05, 0.3])
def test_drafts_come_back_after_a_bad_time_even_if_the_search_is_expensive(searching: float) -> None:
    packing = Packing(lambda nodes: 1.0 + 0.001 * nodes, searching)
    for _ in range(400):
        packing.step(8, accepts=False)
    packing.num_drafted = 0
    for _ in range(2600):
        packing.step(8, accepts=True)
    assert packing.num_drafted > 2000


def test_a_machine_that_becomes_faster_makes_no_drafts_free_for_long() -> None:
    packing = Packing(lambda nodes: 1.0 + 0.16 * nodes)
    for step in range(400):
        packing.step(1, accepts=step % 4 > 0)
    packing.spent = packing.plain = 0.0
    for _ in range(300):
        packing.step(1, accepts=False, speed=2.0)
    assert packing.spent <= 1.01 * packing.plain + 18.0 * packing.takes(1) / 2.0  # 16 were gained before
