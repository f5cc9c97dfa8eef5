"""The size of drafts: what is expected to bring most for its time, within what the balance can lose."""

from collections.abc import Sequence
from typing import Literal
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import DraftTree
from specdec.costs import Costs, StepCosts
from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.sizer import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step


def costs_of(per_node: float) -> Costs:
    """A pass of one node takes 3 seconds, each further one so many times that."""
    return Costs((1, 101), (3.0, 3.0 * (1 + 100 * per_node)), 3.0)


class Sized(SpeedupSizer):
    """A sizer with costs and a budget of its own."""

    def __init__(self, costs: Costs, max_size: int, loss: float, learns: bool = True) -> None:
        self.costs = StepCosts(costs, max_size, learns)
        super().__init__(self.costs, loss)


def sizer(per_node: float, loss: float = 0.0, balance: float = 4.0, widest: int = 40) -> Sized:
    made = Sized(costs_of(per_node), widest, loss, learns=False)
    made.budget.balance = balance
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
        outcomes.append(Outcome(ANY_REQUEST, tree=tree, path=tuple(range(count + 1)), tokens=(1,) * (count + 1)))
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
    kept = Sized(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60, 0.01)
    plain = spent = 0.0
    for step in range(3000):
        width = width_of(kept, [FixedGrowth([0.5, 0.2])])
        accepted = int(width > 1 and accepts_every > 0 and step % accepts_every == 0)
        seconds = real if width > 1 else 1.0
        spent, plain = spent + seconds, plain + 1.0 + accepted
        record = recorded([width], [accepted], seconds)
        kept.learn(record, record.outcomes)
    assert spent <= 1.03 * plain + 5.0  # the first drafts, before enough was seen to compare


def test_a_draft_is_charged_what_it_is_known_to_cost_after_its_step() -> None:
    kept = Sized(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60, 0.0)
    corrected = 0.0
    for step in range(40):
        kept.budget.balance = 4.0
        width = width_of(kept, [FixedGrowth([0.9] * (step % 2))])
        believed, record = kept.cost, recorded([width], [0], 1.5 if width > 1 else 1.0)
        kept.learn(record, record.outcomes)
        known = kept.costs.table(1).at(width)
        assert kept.budget.balance == pytest.approx(4.0 - (known - 1.0))
        corrected += abs(known - believed)
    assert corrected > 0.1


def test_drafting_that_finds_nothing_is_given_up_since_it_takes_time_as_well() -> None:
    kept = Sized(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60, 0.01)
    spent = 0.0
    for _ in range(3000):
        rests = kept.skips(1)
        assert rests or kept.sizes([FixedGrowth([])]) == [1]
        spent += 1.0 if rests else 1.1
        record = recorded([1], [0], 1.0 if rests else 1.1)
        kept.learn(record, record.outcomes)
    assert spent <= 1.015 * 3000


def test_a_machine_that_slows_down_is_not_the_drafts_fault() -> None:
    kept = Sized(Costs((1, 3, 65), (1.0, 1.1, 9.0), 1.0), 60, 0.01)
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
    kept.budget.balance = 4.0
    assert alone > 1
    assert kept.sizes([FixedGrowth([0.3] * 9)]) == [1]


def test_chunks_of_prompts_are_no_rows_of_other_strategies() -> None:
    kept = sizer(0.05)
    before = kept.sizes([FixedGrowth([0.3] * 9)])
    outcomes = recorded([1], [0], 3.0).outcomes
    chunks = tuple(Outcome(ANY_REQUEST, is_chunk=True) for _ in range(3))
    kept.learn(StepRecord("prompt", (*outcomes, *chunks), {"forward": 9.0}, width=8), outcomes)
    kept.budget.balance = 4.0
    assert before[0] > 1
    assert kept.sizes([FixedGrowth([0.3] * 9)]) == before


@given(data=st.data(), num_rows=st.integers(1, 3), per_node=st.floats(0, 1.5), loss=st.floats(0, 0.2))
def test_however_wrong_the_probabilities_are_the_loss_is_bounded(
    data: st.DataObject, num_rows: int, per_node: float, loss: float
) -> None:
    costs = costs_of(per_node)
    kept = Sized(costs, 60, loss)
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


def test_each_row_adds_what_its_draft_brought_and_plain_steps_nothing() -> None:
    kept = sizer(0.1, balance=0.5)
    for widths, accepted, earned in (([1], [0], 0.0), ([1, 3], [0, 2], 1.0), ([3], [1], 1.0)):
        before = kept.budget.balance
        record = recorded(widths, accepted, 1.0)
        kept._is_skipped = True  # else what was charged is corrected
        kept.learn(record, record.outcomes)
        assert kept.budget.balance == pytest.approx(before + earned)


@pytest.mark.parametrize(
    ("kind", "is_warm", "others", "learns"),
    [("step", True, 0, True), ("prompt", True, 0, False), ("step", False, 0, False), ("step", True, 2, False)],
)
def test_only_steps_of_its_own_that_are_as_fast_as_they_will_be_correct_costs(
    kind: Literal["prompt", "step"], is_warm: bool, others: int, learns: bool
) -> None:
    kept = Sized(costs_of(0.1), 20, 0.0)
    for width, seconds in ((1, 3.0), (3, 7.2)):
        for _ in range(5):
            record = recorded([width] * (1 + others), [0] * (1 + others), seconds, kind)
            object.__setattr__(record, "is_warm", is_warm)
            kept._is_skipped = width == 1
            kept.learn(record, record.outcomes[:1])
    assert kept.costs.table(1).costs[3] == pytest.approx(2.4 if learns else 1.2)


def test_a_trial_follows_a_pause_unless_costs_are_fixed() -> None:
    for learns in (True, False):
        kept = Sized(costs_of(0.5), 20, 0.01, learns)
        widths = list[int]()
        for _ in range(200):
            widths.append(width_of(kept, [FixedGrowth([0.01] * 9)]))  # nothing that pays
            record = recorded([widths[-1]], [0], 3.0)
            kept.learn(record, record.outcomes)
        assert (max(widths) > 1) == learns
