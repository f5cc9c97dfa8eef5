"""The size of drafts: what is expected to bring most for its time, within what the balance can lose."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import DraftTree
from specdec.costs import Costs
from specdec.padding import Padding
from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.padded_cost_model import PaddedCostModel
from specdec.strategies.merging.sizer import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth


def costs_of(per_node: float) -> Costs:
    """A pass of one node takes 3 seconds, each further one so many times that."""
    return Costs((1, 101), (3.0, 3.0 * (1 + 100 * per_node)), 3.0)


def sizer(per_node: float, loss: float = 0.0, balance: float = 4.0, widest: int = 40) -> SpeedupSizer:
    made = SpeedupSizer(PaddedCostModel(costs_of(per_node), widest, learns=False), loss)
    made.balance = balance
    return made


def recorded(
    widths: Sequence[int],
    accepted: Sequence[int],
    seconds: float,
    kind: Literal["prompt", "step"] = "step",
    searching: float = 0.0,
) -> StepRecord:
    """A step that fed chains and accepted so many of their tokens."""
    outcomes = []
    for width, count in zip(widths, accepted, strict=True):
        tree = DraftTree(0)
        tree.add_chain(0, range(1, width))
        outcomes.append(Outcome(Mock(), tree=tree, path=tuple(range(count + 1)), tokens=(1,) * (count + 1)))
    return StepRecord(kind, tuple(outcomes), {"propose": searching, "forward": seconds}, width=max(widths))


def width_of(kept: SpeedupSizer, growths: Sequence[Growth]) -> int:
    """The nodes of a step's widest row, as the engine asks for them."""
    return 1 if kept.skips(len(growths)) else max(kept.sizes(growths))


probabilities = st.lists(st.floats(0.006, 1.0), max_size=10)


@given(
    rows=st.lists(probabilities, min_size=1, max_size=3),
    per_node=st.floats(0.0, 0.5),
    speed_up=st.floats(1.0, 4.0),
)
def test_the_size_is_the_one_of_largest_expected_gain(
    rows: list[list[float]], per_node: float, speed_up: float
) -> None:
    """Against trying every size."""
    ordered = [sorted(row, reverse=True) for row in rows]
    costs = costs_of(per_node)

    def cost(width: int) -> float:
        return costs.at(len(rows) * width) / costs.at(len(rows))

    def gain(width: int) -> float:
        return 1 + sum(sum(row[: width - 1]) for row in ordered) / len(rows) - speed_up * cost(width)

    best = max((width for width in range(1, 12) if width == 1 or cost(width) <= 5.0), key=gain)
    kept = sizer(per_node, balance=4.0)
    kept._tokens, kept._time = speed_up, 1.0
    width = max(kept.sizes([FixedGrowth(row, 30) for row in rows]))
    doubt = 0.05 * speed_up * cost(best) if width == 1 else 0.0  # drafts that promise less than that aren't made
    assert gain(width) >= gain(best) - doubt - 1e-9


def test_limits_of_nodes_are_kept_and_rows_fill_up_to_the_common_width() -> None:
    growths = [FixedGrowth([0.9] * 9, 5), FixedGrowth([0.9] * 9, 2), FixedGrowth([0.02] * 9, 9)]
    assert sizer(0.05).sizes(growths) == [6, 3, 6]  # the third row's places are paid for


@pytest.mark.parametrize("real", [1.2, 1.8, 2.5, 3.5])
@pytest.mark.parametrize("accepts_every", [0, 2, 3])
def test_however_wrong_the_costs_are_the_loss_is_bounded(real: float, accepts_every: int) -> None:
    """A draft is believed to cost a tenth of a step, and costs up to three steps."""
    kept = SpeedupSizer(PaddedCostModel(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60), loss=0.01)
    plain = spent = 0.0
    for step in range(3000):
        width = width_of(kept, [FixedGrowth([0.5, 0.2])])
        accepted = int(width > 1 and accepts_every > 0 and step % accepts_every == 0)
        seconds = real if width > 1 else 1.0
        spent, plain = spent + seconds, plain + 1.0 + accepted
        record = recorded([width], [accepted], seconds)
        kept.learn(record, record.outcomes)
    assert spent <= 1.03 * plain + 5.0  # the first drafts, before enough was seen to compare


def test_the_loss_is_bounded_although_each_change_of_sizes_takes_longer() -> None:
    """Passes of four rows are padded to 6, 8 or 32 nodes. Three in ten steps have candidates, which rarely pay."""
    measured = Costs((6, 8, 32), (1.0, 1.02, 1.5), 1.0, padding=Padding((6, 8, 32)))
    kept, chosen = SpeedupSizer(PaddedCostModel(measured, 8), loss=0.01), random.Random(0)
    plain, spent, last = 0.0, 0.0, 6
    for _ in range(400):
        probabilities = [0.15] if chosen.random() < 0.3 else []
        width = width_of(kept, [FixedGrowth(probabilities) for _ in range(4)])
        accepted = [int(width > 1 and chosen.random() < sum(probabilities)) for _ in range(4)]
        size = 6 if width == 1 else 8
        seconds = measured.at(size) + 0.33 * (size != last)
        spent, plain, last = spent + seconds, plain + 1.0 + sum(accepted) / 4, size
        record = recorded([width] * 4, accepted, seconds)
        kept.learn(record, record.outcomes)
    assert spent <= 1.01 * plain + 2.0


def test_drafts_go_on_where_most_steps_have_none_and_changes_of_sizes_take_long() -> None:
    """Passes of a node or of 6 to 24; a change takes half a plain step. One step in twenty has a long draft."""
    sizes = (1, 6, 8, 12, 16, 24)
    measured = Costs(sizes, (1.0, 1.16, 1.25, 1.5, 1.7, 2.1), 1.0, padding=Padding(sizes))
    drafts = [], [0.6, 0.42, 0.3], [0.85**depth for depth in range(1, 16)]
    plain = spent = 0.0
    for seed in range(3):
        kept, chosen, last = SpeedupSizer(PaddedCostModel(measured, 24), loss=0.01), random.Random(seed), 1.0
        for step in range(700):
            (of_step,) = chosen.choices(drafts, (0.7, 0.25, 0.05))
            width = width_of(kept, [FixedGrowth(of_step)])
            draw = chosen.random()
            accepted = sum(draw < probability for probability in of_step[: width - 1])
            size = measured.padding.size(width)
            seconds, last = measured.at(int(size)) + 0.5 * (size != last), size
            if step >= 200:
                spent, plain = spent + seconds, plain + 1.0 + accepted
            record = recorded([width], [accepted], seconds)
            kept.learn(record, record.outcomes)
    assert spent < 0.83 * plain


def test_drafts_do_not_pay_for_changes_of_sizes_that_plain_steps_have_as_well() -> None:
    """Two and ten rows in turn, whose passes are padded to 6 and 12 tokens; at first the balance is used up."""
    measured = Costs((6, 12), (1.0, 1.2), 1.0, padding=Padding((6, 12)))
    kept = SpeedupSizer(PaddedCostModel(measured, 8), loss=0.01)
    kept.balance = -0.25
    for step in range(120):
        num_rows = 2 if step % 24 < 12 else 10
        assert width_of(kept, [FixedGrowth([])] * num_rows) == 1
        record = recorded([1] * num_rows, [0] * num_rows, measured.at(num_rows) + 0.5 * (step % 12 == 0))
        kept.learn(record, record.outcomes)
    assert kept._costs.cost_of_switch(2, 1) == pytest.approx(0.5)
    assert kept.balance > 0.5
    for step in range(60):  # forced text that is rejected, in every second step
        kept.skips(2)
        record = recorded([1 + 6 * (step % 2)] * 2, [0] * 2, 1.5)
        kept.learn(record, record.outcomes)
    assert kept.balance >= -0.5


def test_drafting_that_finds_nothing_is_given_up_since_it_takes_time_as_well() -> None:
    kept = SpeedupSizer(PaddedCostModel(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60), loss=0.01)
    spent = 0.0
    for _ in range(3000):
        rests = kept.skips(1)
        assert rests or kept.sizes([FixedGrowth([])]) == [1]
        spent += 1.0 if rests else 1.1
        record = recorded([1], [0], 1.0 if rests else 1.1)
        kept.learn(record, record.outcomes)
    assert spent <= 1.015 * 3000


def test_a_machine_that_slows_down_is_not_the_drafts_fault() -> None:
    kept = SpeedupSizer(PaddedCostModel(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60), loss=0.01)
    num_drafted = 0
    for step in range(400):
        width = width_of(kept, [FixedGrowth([0.5, 0.2])])
        slowness = 5.0 if step >= 200 else 1.0
        record = recorded([width], [int(width > 1 and step % 2)], slowness * (1.1 if width > 1 else 1.0))
        kept.learn(record, record.outcomes)
        num_drafted += step >= 200 and width > 1
    assert num_drafted > 180


def test_a_batch_with_others_is_sized_by_all_its_rows() -> None:
    """Three of four rows have another strategy: a wider pass costs what it costs for all of them."""
    kept = sizer(0.05)
    (alone,) = kept.sizes([FixedGrowth([0.3] * 9)])
    record = recorded([alone, 1, 1, 1], [0, 0, 0, 0], 3.0)
    kept.learn(record, record.outcomes[:1])
    kept.balance = 4.0
    assert alone > 1
    assert kept.sizes([FixedGrowth([0.3] * 9)]) == [1]


def test_chunks_of_prompts_are_no_rows_of_other_strategies() -> None:
    kept = sizer(0.05)
    before = kept.sizes([FixedGrowth([0.3] * 9)])
    outcomes = recorded([1], [0], 3.0).outcomes
    chunks = tuple(Outcome(Mock(), is_chunk=True) for _ in range(3))
    kept.learn(StepRecord("prompt", (*outcomes, *chunks), {"forward": 9.0}, width=8), outcomes)
    kept.balance = 4.0
    assert before[0] > 1
    assert kept.sizes([FixedGrowth([0.3] * 9)]) == before


@given(data=st.data(), num_rows=st.integers(1, 3), per_node=st.floats(0, 1.5), loss=st.floats(0, 0.2))
def test_however_wrong_the_probabilities_are_the_loss_is_bounded(
    data: st.DataObject, num_rows: int, per_node: float, loss: float
) -> None:
    costs = costs_of(per_node)
    kept = SpeedupSizer(PaddedCostModel(costs, 60), loss)
    plain = spent = 0.0
    for step in range(30):
        growths = [FixedGrowth(data.draw(probabilities), 30) for _ in range(num_rows)]
        width = width_of(kept, growths)
        widths = [min(width, len(growth)) for growth in growths]
        accepted = [data.draw(st.integers(0, width - 1)) for width in widths]
        seconds = costs.at(num_rows * max(widths))
        spent += seconds
        plain += costs.at(num_rows) * (1 + sum(accepted) / num_rows)
        record = recorded(widths, accepted, seconds, "step" if step else "prompt")
        kept.learn(record, record.outcomes)
    assert spent <= plain + (2.0 + 30 * loss) * costs.at(num_rows) + 1e-6


def test_no_draft_is_fed_that_the_balance_cannot_lose() -> None:
    widths = [sizer(0.1, balance=balance).sizes([FixedGrowth([0.9] * 9)]) for balance in (0.05, 0.15, 0.45, 4.0)]
    assert widths == [[1], [2], [5], [10]]


def test_what_was_saved_in_short_steps_is_worth_fewer_long_ones() -> None:
    costs = Costs((1, 11), (1.0, 2.0), 1.0)  # a plain step of eleven rows takes two of one
    kept = SpeedupSizer(PaddedCostModel(costs, 20), 0.0)
    kept.skips(1)
    before = kept.balance
    kept.skips(11)
    assert kept.balance == pytest.approx(before / 2)
    kept.skips(1)
    assert kept.balance == pytest.approx(before)


def test_each_row_adds_what_its_draft_brought_and_plain_steps_nothing() -> None:
    kept = sizer(0.1, balance=0.5)
    for widths, accepted, earned in (([1], [0], 0.0), ([1, 3], [0, 2], 1.0), ([3], [1], 1.0)):
        before = kept.balance
        record = recorded(widths, accepted, 1.0)
        kept._is_skipped = True  # else what was charged is corrected
        kept.learn(record, record.outcomes)
        assert kept.balance == pytest.approx(before + earned)


@pytest.mark.parametrize(
    ("kind", "is_warm", "others", "learns"),
    [("step", True, 0, True), ("prompt", True, 0, False), ("step", False, 0, False), ("step", True, 2, False)],
)
def test_only_steps_of_its_own_that_are_as_fast_as_they_will_be_correct_costs(
    kind: Literal["prompt", "step"], is_warm: bool, others: int, learns: bool
) -> None:
    kept = SpeedupSizer(PaddedCostModel(costs_of(0.1), 20), 0.0)
    for width, seconds in ((1, 3.0), (3, 7.2)):
        for _ in range(5):
            record = recorded([width] * (1 + others), [0] * (1 + others), seconds, kind)
            object.__setattr__(record, "is_warm", is_warm)
            kept._is_skipped = width == 1
            kept.learn(record, record.outcomes[:1])
    assert kept._costs.table(1).costs[3] == pytest.approx(2.4 if learns else 1.2)


def test_a_plain_step_that_read_tokens_again_is_no_measure_of_plain_steps() -> None:
    kept = SpeedupSizer(PaddedCostModel(costs_of(0.1), 20), 0.0)
    for width, num_reread, seconds in ((1, 0, 3.0), (1, 11, 9.0), (5, 11, 12.0)):
        for _ in range(5):
            record = replace(recorded([width], [0], seconds), width=width + num_reread, num_reread=num_reread)
            kept._is_skipped, before = width == 1, kept.balance
            kept.learn(record, record.outcomes)
            is_charged = kept.balance < before or before == kept.balance < 0.0
            assert is_charged == (num_reread > 0)
    costs = kept._costs.table(1).costs
    assert costs[16] == pytest.approx(4.0)  # twelve seconds over three
    assert costs[5] < 2.0  # nothing was fed five nodes


def test_a_trial_follows_a_pause_unless_costs_are_fixed() -> None:
    for learns in (True, False):
        kept = SpeedupSizer(PaddedCostModel(costs_of(0.5), 20, learns), loss=0.01)
        widths = list[int]()
        for _ in range(200):
            widths.append(width_of(kept, [FixedGrowth([0.01] * 9)]))  # nothing that pays
            record = recorded([widths[-1]], [0], 3.0)
            kept.learn(record, record.outcomes)
        assert (max(widths) > 1) == learns


@given(balance=st.floats(-3.0, -0.3), loss=st.floats(0.001, 0.2), learns=st.booleans())
def test_a_rest_leaves_out_steps_that_would_draft_nothing(balance: float, loss: float, learns: bool) -> None:
    each, resting = (SpeedupSizer(PaddedCostModel(costs_of(0.1), 40, learns), loss) for _ in range(2))
    each.balance = resting.balance = balance
    assert each.skips(1)
    assert resting.skips(1)
    num_steps = resting.rest(1)
    assert all(each.skips(1) for _ in range(num_steps))
    assert resting.balance == pytest.approx(each.balance)
    num_left = [next(step for step in range(10_000) if not made.skips(1)) for made in (each, resting)]
    assert abs(num_left[0] - num_left[1]) <= 1  # sums are rounded differently


def test_no_rest_while_drafts_are_made() -> None:
    kept = sizer(0.1, loss=0.01)
    assert not kept.skips(1)
    assert kept.rest(1) == 0
