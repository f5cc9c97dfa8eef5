"""Costs where rejected drafts leave tokens pending, which later passes read again."""

import random
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from specdec.backends.states.state_costs import StateCosts
from specdec.costs import Costs
from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.sizer import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth
from tests.strategies.auto.test_sizer import costs_of

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step

MOST_PENDING = 16


def test_without_pending_tokens_costs_are_those_of_any_model() -> None:
    costs = StateCosts(costs_of(0.1), 20, False, lambda: [0, 0])
    assert costs.table(2).costs[1:4] == pytest.approx([1.0, 1.3 / 1.1, 1.5 / 1.1])


@pytest.mark.parametrize("pending", [1, 5, 12])
def test_a_pass_is_charged_for_pending_tokens_like_for_nodes(pending: int) -> None:
    measured = costs_of(0.02)
    table = StateCosts(measured, 40, False, lambda: [pending]).table(1)
    assert table.costs[1] == pytest.approx(measured.relative_at(pending + 1))
    assert table.costs[5] == pytest.approx(measured.relative_at(pending + 5))


def test_a_step_is_charged_for_each_of_its_passes() -> None:
    """A plain one for a pass of each number of pending tokens; a draft shares passes where that saves time."""
    measured = costs_of(0.02)
    table = StateCosts(measured, 60, False, lambda: [1, 5, 12]).table(3)
    assert table.costs[1] == pytest.approx(sum(map(measured.at, (2, 6, 13))) / measured.at(3))
    assert table.costs[3] == pytest.approx(sum(map(measured.at, (12 + 3, 2 * (5 + 3)))) / measured.at(3))


def chains(rate: float, seed: int) -> Iterator[Callable[[int], int]]:
    """For each step, the number of draft tokens that are accepted of any number of them."""
    rng = random.Random(seed)
    while True:
        length = 0
        while rng.random() < rate and length < 100:
            length += 1
        yield lambda num_drafted, length=length: min(num_drafted, length)  # type: ignore[misc]


def cost_per_token(
    costs: Costs,
    rate: float,
    size_of: Callable[[int, int], int],
    learn: Callable[[StepRecord], object] = lambda _: None,
    left: list[int] | None = None,
) -> float:
    """Decode a long text; ``size_of`` returns a step's size from its pending tokens and the steps since a move.

    ``left`` is kept at the pending tokens.
    """
    spent, num_tokens, pending, since = 0.0, 0, 0, 0
    for _, accepted in zip(range(1500), chains(rate, 1), strict=False):
        size = size_of(pending, since)
        taken, read = 0.0, pending
        if pending + 1 >= MOST_PENDING and size > 1:  # the cache moves the checkpoint in a pass of its own
            taken, pending = costs.relative_at(pending + 1), 0
        taken += costs.relative_at(pending + size)
        count = accepted(size - 1)
        spent, num_tokens = spent + taken, num_tokens + 1 + count
        pending, since = (0, 0) if count == size - 1 else (pending + 1 + count, since + 1)
        if left is not None:
            left[:] = [pending]
        outcome = Outcome(ANY_REQUEST, tokens=(1,) * (1 + count))
        learn(StepRecord("step", (outcome,), {"forward": taken}, width=read + size, num_reread=read))
    return spent / num_tokens


@pytest.mark.parametrize(("per_node", "rate"), [(0.02, 0.3), (0.15, 0.3), (0.15, 0.6), (0.02, 0.8)])
def test_the_checkpoint_is_moved_when_reading_again_costs_more_than_a_plain_step(per_node: float, rate: float) -> None:
    """As fast as the best of all fixed sizes and numbers of drafts between two moves, or nearly."""
    measured, left = costs_of(per_node), [0]
    costs = StateCosts(measured, 60, False, lambda: left)
    sizer = SpeedupSizer(costs, 0.01)

    def sized(pending: int, since: int) -> int:
        sizer.budget.balance = 100.0
        sizer.skips(1)
        sizer.budget.balance = 100.0
        return sizer.sizes([FixedGrowth([rate**depth for depth in range(1, 9)])])[0]

    def fixed(size: int, num_drafts: int) -> float:
        return cost_per_token(measured, rate, lambda _, since: 1 if since >= num_drafts else size)

    best = min([fixed(size, num_drafts) for size in range(2, 9) for num_drafts in (1, 2, 3, 5, 8)] + [1.0])
    found = cost_per_token(measured, rate, sized, lambda record: sizer.learn(record, record.outcomes), left)
    assert found <= 1.08 * best  # an engine knows costs, and not how likely a draft is


def test_a_plain_step_that_read_tokens_again_is_no_measure_of_plain_steps() -> None:
    costs = StateCosts(costs_of(0.1), 20, True, lambda: [0])
    for width, num_reread, seconds in ((1, 0, 3.0), (1, 11, 9.0), (5, 0, 12.0)):
        for _ in range(5):
            record = StepRecord(
                "step", (Outcome(ANY_REQUEST, tokens=(1,)),), {"forward": seconds}, width=width + num_reread
            )
            object.__setattr__(record, "num_reread", num_reread)
            costs.learn(record, is_plain=width == 1)
    assert costs.table(1).costs[5] == pytest.approx(4.0)  # twelve seconds over three
