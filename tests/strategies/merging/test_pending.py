"""The size of drafts where rejected ones leave tokens pending, which later passes read again."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.costs import Costs
from specdec.record import StepRecord
from specdec.strategies.merging.padded_cost_model import PaddedCostModel
from specdec.strategies.merging.sizer import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth
from tests.strategies.merging.test_sizer import costs_of, recorded, sizer

MOST_PENDING = 16


@given(
    pending=st.integers(0, 14),
    per_node=st.floats(0.01, 0.3),
    rate=st.floats(0.1, 0.99),
    speed_up=st.floats(1.0, 4.0),
)
def test_a_pass_is_charged_for_pending_tokens_like_for_nodes(
    pending: int, per_node: float, rate: float, speed_up: float
) -> None:
    """Without a gain from moving the checkpoint, the size is the best of all with p + n nodes."""
    costs, probabilities = costs_of(per_node), [rate**depth for depth in range(1, 9)]
    kept = sizer(per_node, balance=100.0)
    kept.skips(1, [pending])
    kept.balance, kept._tokens, kept._time = 100.0, speed_up, 1.0
    (size,) = kept.sizes([FixedGrowth(probabilities)])
    assert kept.cost == pytest.approx(costs.relative_at(pending + size))
    assert kept.balance == pytest.approx(100.0 - kept.cost + 1.0)

    def cost(size: int) -> float:
        is_rejected = 1.0 - (probabilities[size - 2] if size > 1 else 1.0)
        left = is_rejected * (1 + round(sum(probabilities[: size - 1]))) * per_node if pending else 0.0
        return costs.relative_at(pending + size) + left

    def gain(size: int) -> float:
        return 1.0 + sum(probabilities[: size - 1]) - speed_up * cost(size)

    best = max(range(1, 10), key=gain)
    doubt = 0.05 * speed_up * cost(best)
    if size > 1:
        assert gain(size) >= gain(best) - doubt
    elif gain(best) > gain(1) + doubt:  # then the checkpoint is moved: reading again would cost more than a plain step
        per_token = (cost(best) - pending * per_node) / (1.0 + sum(probabilities[: best - 1]))
        assert pending * per_node > 1.0 - per_token - 0.1


@pytest.mark.parametrize(
    ("pending", "num_drafted", "passes"),
    [
        ([1, 0, 12], 3, [2 * (1 + 3), 12 + 3]),  # drafts after few tokens share a pass
        ([1, 0, 0], 1, [1 + 3, 2]),  # rows without a draft have a plain step's
        ([1, 0, 12], 0, [2, 1, 13]),  # which is one for each number of pending tokens
        ([15, 0, 0], 1, [16, 2, 3 - 1]),  # at the limit, pending tokens and the root are read first
    ],
)
def test_a_step_is_charged_for_each_of_its_passes(pending: list[int], num_drafted: int, passes: list[int]) -> None:
    costs, kept = costs_of(0.02), sizer(0.02, balance=100.0)
    kept.skips(3, pending)
    kept._num_trials, kept.balance = 1, 100.0  # a trial drafts whether it pays or not
    growths = [FixedGrowth([0.99, 0.98] if row < num_drafted else []) for row in range(3)]
    assert max(kept.sizes(growths)) == (3 if num_drafted else 1)
    assert kept.cost == pytest.approx(sum(map(costs.at, passes)) / costs.at(3))


def test_a_plain_step_in_several_passes_is_charged_with_all_of_them() -> None:
    """It moves checkpoints, and takes longer than a draft, for which the rows share a pass."""
    kept = sizer(0.02, balance=100.0)
    kept.skips(3, [1, 5, 9])
    kept._pending._reread = 5.0
    assert kept.sizes([FixedGrowth([0.3]) for _ in range(3)]) == [1, 1, 1]
    assert kept.cost == pytest.approx(sum(map(costs_of(0.02).at, (2, 6, 10))) / costs_of(0.02).at(3))


def chains(rate: float, seed: int) -> Iterator[Callable[[int], int]]:
    """For each step, the number of draft tokens that are accepted of any number of them."""
    rng = random.Random(seed)
    while True:
        length = 0
        while rng.random() < rate and length < 100:
            length += 1
        yield lambda num_drafted, length=length: min(num_drafted, length)  # type: ignore[misc]


def cost_per_token(costs: Costs, rate: float, size_of: Callable[[int, int], int]) -> float:
    """Decode a long text; ``size_of`` returns a step's size from its pending tokens and the steps since a move."""
    spent, num_tokens, pending, since = 0.0, 0, 0, 0
    for _, accepted in zip(range(1500), chains(rate, 1), strict=False):
        size = size_of(pending, since)
        if pending + 1 >= MOST_PENDING and size > 1:  # the cache moves the checkpoint in a pass of its own
            spent, pending = spent + costs.relative_at(pending + 1), 0
        spent += costs.relative_at(pending + size)
        count = accepted(size - 1)
        num_tokens += 1 + count
        pending, since = (0, 0) if count == size - 1 else (pending + 1 + count, since + 1)
    return spent / num_tokens


@pytest.mark.parametrize(("per_node", "rate"), [(0.02, 0.3), (0.15, 0.3), (0.15, 0.6), (0.02, 0.8)])
def test_the_checkpoint_is_moved_when_reading_again_costs_more_than_a_plain_step(per_node: float, rate: float) -> None:
    """As fast as the best of all fixed sizes and numbers of drafts between two moves, or nearly."""
    costs = costs_of(per_node)
    kept = SpeedupSizer(PaddedCostModel(costs, 60, learns=False), loss=0.0)

    def sized(pending: int, since: int) -> int:
        kept.balance = 100.0
        kept.skips(1, [pending])
        kept.balance = 100.0
        return kept.sizes([FixedGrowth([rate**depth for depth in range(1, 9)])])[0]

    def fixed(size: int, num_drafts: int) -> float:
        return cost_per_token(costs, rate, lambda _, since: 1 if since >= num_drafts else size)

    best = min([fixed(size, num_drafts) for size in range(2, 9) for num_drafts in (1, 2, 3, 5, 8)] + [1.0])
    kept._tokens, kept._time = 1.0, best  # as after many such steps
    found = cost_per_token(costs, rate, sized)
    assert found <= 1.05 * best


def test_a_draft_needs_a_balance_for_the_tokens_that_it_leaves_pending() -> None:
    sizes = []
    for num_reread in (0, 1):
        kept = sizer(0.1, balance=0.45)
        kept.skips(1, [num_reread])
        kept.skips(1, [0])
        sizes += kept.sizes([FixedGrowth([0.9] * 9)])
    assert sizes == [5, 4]
    kept.forget()
    kept.balance = 0.45
    kept.skips(1, [0])
    assert kept.sizes([FixedGrowth([0.9] * 9)]) == [5]


def test_a_plain_step_moves_the_checkpoint_and_costs_its_pending_tokens() -> None:
    kept = sizer(0.1, balance=2.0)
    kept.skips(1, [9])
    assert kept.sizes([FixedGrowth([0.5, 0.1])]) == [1]
    record = recorded([1], [0], 3.0)
    kept.learn(StepRecord("step", record.outcomes, record.seconds, width=10, num_reread=9), record.outcomes)
    assert kept.balance == pytest.approx(2.0 - 0.9)
