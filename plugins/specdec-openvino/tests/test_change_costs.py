"""The costs of steps where a pass of another size than the one before takes longer."""

from unittest.mock import Mock

import pytest
from specdec_openvino.engine.change_costs import ChangeCosts
from specdec_openvino.engine.filling import Filling

from specdec.costs import Costs
from specdec.layout import Padding
from specdec.record import Outcome, StepRecord

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step

PADDING = Padding((6, 8, 12), least_width=2)
MEASURED = Costs((1, 6, 12), (1.0, 1.0, 1.6), 1.0, PADDING)
PLAIN, CHANGE = 1.0, 0.45  # seconds


class Engine:
    """Runs steps of one row, which take CHANGE longer where the size isn't that of the step before."""

    def __init__(self, change: float = CHANGE) -> None:
        self.filling, self.change = Filling(PADDING), change
        self.model = ChangeCosts(MEASURED, 11, True, self.filling)

    def step(self, width: int, times: int = 1) -> None:
        for _ in range(times):
            self.filling.tokens([width])
            seconds = MEASURED.at(width) + self.change * (self.filling.size != self.filling.size_before)
            record = StepRecord("step", (Outcome(ANY_REQUEST),), {"forward": seconds}, width=width)
            self.model.learn(record, is_plain=width == 1)

    def costs(self) -> list[float]:
        """The costs of 6, 8 and 12 nodes."""
        costs = self.model.table(1).costs
        return [costs[6], costs[8], costs[11]]


def test_a_size_beside_plain_steps_costs_two_changes() -> None:
    engine = Engine()
    engine.step(1, times=3)
    engine.step(8)
    engine.step(1, times=3)
    engine.step(11)
    engine.step(1, times=3)
    at_8 = MEASURED.at(8)
    assert engine.costs() == pytest.approx([1.0, at_8 + 2 * CHANGE, 1.6 + 2 * CHANGE], rel=0.1)


def test_the_size_of_the_last_pass_costs_no_change_more_than_a_plain_step() -> None:
    engine = Engine()
    for _ in range(3):
        engine.step(1, times=3)
        engine.step(8)
    assert engine.costs()[1] == pytest.approx(MEASURED.at(8), rel=0.1)
    assert engine.costs()[2] == pytest.approx(1.6 + CHANGE, rel=0.1)


def test_sizes_that_are_filled_up_like_plain_steps_are_no_change() -> None:
    engine = Engine()
    engine.step(1, times=3)
    engine.step(6)
    engine.step(1, times=3)
    engine.step(4)
    assert engine.costs()[0] == pytest.approx(1.0, rel=0.02)


def test_an_engine_whose_changes_are_free_is_learnt() -> None:
    engine = Engine(change=0.0)
    for _ in range(10):
        engine.step(1, times=3)
        engine.step(8)
    engine.step(1, times=2)
    assert engine.costs()[1] == pytest.approx(MEASURED.at(8), rel=0.05)
