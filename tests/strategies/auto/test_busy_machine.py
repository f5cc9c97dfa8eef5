"""Drafting on a machine whose costs were measured in a bad moment, or that other programs use."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

import pytest

from specdec.costs import Costs
from specdec.strategies.auto.sizer import SpeedupSizer
from specdec.testing.fixed_growth import FixedGrowth
from tests.strategies.auto.test_sizer import Sized, recorded, width_of

SIZES = (1, 6, 33)
TRUE = Costs(SIZES, (1.0, 1.03, 1.9), 1.0)  # SmolLM2 in float32 on two cores
PROBS = (0.55, 0.3, 0.16, 0.09, 0.06, 0.04, 0.03, *[0.01] * 25)  # of a chain's tokens to be accepted, one by one
LOSS = 0.01


@dataclass
class Machine:
    """Steps on a fake machine: a pass takes what the true costs say, times a disturbance."""

    sizer: SpeedupSizer
    rng: random.Random
    slowness: Callable[[int, random.Random], float]  # by the pass's nodes
    probs: Sequence[float] = PROBS
    spent: float = 0.0
    plain: float = 0.0  # what plain decoding of the same tokens takes on the undisturbed machine
    tokens: int = 0

    def run(self, num_steps: int) -> float:
        """Return the tokens per step."""
        before = self.tokens
        for _ in range(num_steps):
            width = width_of(self.sizer, [FixedGrowth(self.probs, 32)])
            draw = self.rng.random()
            accepted = sum(draw < prob for prob in self.probs[: width - 1])
            record = recorded([width], [accepted], TRUE.at(width) * self.slowness(width, self.rng))
            self.sizer.learn(record, record.outcomes)
            self.tokens += 1 + accepted
            self.plain += 1 + accepted
            self.spent += TRUE.at(width)
        return (self.tokens - before) / num_steps


def machine(costs: Costs, slowness: Callable[[int, random.Random], float], seed: int = 0) -> Machine:
    return Machine(Sized(costs, 64, LOSS), random.Random(seed), slowness)


def quiet(width: int, rng: random.Random) -> float:
    return rng.uniform(1.0, 1.03)


def busy(width: int, rng: random.Random) -> float:
    """Every second pass waits for the processor, for up to four times what it takes."""
    return rng.choice((1.0, rng.uniform(1.0, 5.0))) * rng.uniform(1.0, 1.1)


@cache
def undisturbed() -> float:
    return mean(machine(TRUE, quiet, seed).run(2000) for seed in range(3))


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 5))]


@pytest.mark.parametrize(
    "measured",
    [(1.0, 1.0, 1.03), (1.0, 1.0, 1.0), (1.0, 2.6, 2.6), (1.0, 3.6, 6.9), (1.0, 1.0, 1.3), (1.0, 1.2, 9.0)],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_costs_measured_in_a_bad_moment_are_forgotten(measured: tuple[float, ...], seed: int) -> None:
    steps = machine(Costs(SIZES, measured, 1.0), quiet, seed)
    steps.run(400)
    assert steps.run(2000) >= 0.9 * undisturbed()
    assert steps.spent <= (1 + LOSS) * steps.plain + 3.0


@pytest.mark.parametrize("seed", SEEDS)
def test_drafting_goes_on_beside_a_busy_process(seed: int) -> None:
    steps = machine(TRUE, busy, seed)
    steps.run(400)
    assert steps.run(4000) >= 0.9 * undisturbed()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_learnt_while_only_drafts_were_disturbed_is_forgotten(seed: int) -> None:
    steps = machine(TRUE, lambda width, rng: quiet(width, rng) * (3.0 if width > 1 else 1.0), seed)
    steps.run(300)
    steps.slowness = quiet
    steps.run(400)
    assert steps.run(2000) >= 0.9 * undisturbed()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("disturbed", [quiet, busy])
def test_drafts_that_bring_nothing_cost_no_more_than_the_balance(
    disturbed: Callable[[int, random.Random], float], seed: int
) -> None:
    """Likely tokens that never come, at costs that were measured too low."""
    steps = machine(Costs(SIZES, (1.0, 1.0, 1.03), 1.0), disturbed, seed)
    sizer, spent = steps.sizer, 0.0
    for _ in range(3000):
        width = width_of(sizer, [FixedGrowth(PROBS, 32)])
        record = recorded([width], [0], TRUE.at(width) * disturbed(width, steps.rng))
        sizer.learn(record, record.outcomes)
        spent += TRUE.at(width)
    assert spent <= 1.03 * 3000 + 5.0
