"""When passes over one token are padded, against choices with hindsight."""

import random

from specdec.costs import Costs
from specdec.padding import Padding
from specdec.strategies.merging.padded_cost_model import PaddedCostModel
from specdec.strategies.merging.root_padding import RootPadding
from specdec.strategies.merging.sizer import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth
from tests.strategies.merging.test_sizer import recorded, width_of


def with_hindsight(gains: list[float], change: float) -> float:
    """Return the least cost of any choice for each step, which begins padded."""
    padded, alone = 0.0, change
    for gain in gains:
        padded, alone = min(padded, alone + change), min(alone, padded + change)
        padded, alone = padded + max(0.0, -gain), alone + max(0.0, gain)
    return min(padded, alone)


def test_the_choice_costs_at_most_three_times_what_it_does_with_hindsight() -> None:
    """A step costs what the other choice would have won, and each change what it takes."""
    rng = random.Random(0)
    for _ in range(500):
        change, small = rng.uniform(0.05, 1.0), rng.choice([0.02, 0.1, 0.3])
        gains = list[float]()
        for _ in range(2):  # a great gain or loss, which may change the choice, and small ones
            gains += rng.choices([-2.5 * change, 0.0, 2.5 * change])
            gains += rng.choices([-small, small, 3 * small], [2, 2, 1], k=rng.randint(0, 40))
        padding, cost, was_on = RootPadding(), 0.0, True
        for gain in gains:
            padding.begin()
            is_on = padding.choose(gain, 2.0 * change)
            cost += max(0.0, -gain if is_on else gain) + change * (is_on != was_on)
            was_on = is_on
        assert cost <= 3.0 * with_hindsight(gains, change) + 2.0 * change + 1e-9


def test_passes_of_a_head_wait_until_they_were_expected_to_win_both_changes() -> None:
    """A change takes three tenths of a plain step, and a padded pass one tenth longer than a root alone."""
    sizer = SpeedupSizer(PaddedCostModel(Costs((1, 6), (1.0, 1.1), 1.0, padding=Padding((1, 6))), 6), 0.0)
    for width, seconds in ((3, 1.1), (1, 1.3), (1, 1.0), (3, 1.1)):
        sizer._costs.learn(1, width, seconds, 0.0, width == 1)
    for _ in range(200):  # until padded roots have lost both changes
        sizer.balance = 4.0
        assert width_of(sizer, [FixedGrowth([])]) == 1
        if not sizer.pads_root:
            break
    assert not sizer.pads_root
    answers = list[bool]()
    while len(answers) < 9 and not any(answers):
        sizer.balance = 4.0
        assert width_of(sizer, [FixedGrowth([])]) == 1
        answers.append(sizer.allows_passes(0.35))
    assert answers == [False, False, True]
    sizer.spend(0.1)
    assert sizer.sizes([FixedGrowth([0.3])]) == [2], "what passes have found is drafted"


def test_where_a_padded_pass_cannot_be_lost_no_search_uses_up_what_is_saved_for_it() -> None:
    """A search takes three times what drafts may lose in a step, a padded pass thirty times."""
    costs = Costs((1, 6), (1.0, 1.3), 1.0, padding=Padding((1, 6)))
    sizer = SpeedupSizer(PaddedCostModel(costs, 6), loss=0.01)
    for is_plain in (True, False) * 4:
        sizer._costs.learn(1, 1, 1.0 if is_plain else 1.03, 0.0, is_plain)
    sizer.balance, widths = 0.05, list[int]()
    while len(widths) < 50:  # a trial would follow
        widths.append(width_of(sizer, [FixedGrowth([0.9, 0.8, 0.7])]))
        record = recorded(
            [widths[-1]], [widths[-1] - 1], 1.0 if sizer._is_skipped else 1.03 if widths[-1] == 1 else 1.3
        )
        sizer.learn(record, record.outcomes)
    assert max(widths[:30]) == 1, "the balance isn't there yet"
    assert widths[-1] > 1
