"""A race shares the machine by the lanes' own seconds, and changes no text."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from specdec import Generator, Result, ToyModel
from specdec.apps.pictures.race import Lane, first_difference, race
from specdec.decoding.result import Chunk
from specdec.decoding.stats import Stats
from specdec.generator import OnStep
from specdec.numerics import Numerics
from specdec.record import StepRecord


class _Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Paced:
    """A generator that takes so many seconds for a step, half of them for passes; notes whether its stream was closed.

    Before its first step it reads some of the prompt, which takes as long.
    """

    def __init__(self, clock: _Clock, seconds: float, num_steps: int) -> None:
        self._clock, self._num_steps = clock, num_steps
        self._seconds = {"propose": seconds / 2, "forward": seconds / 2}
        self.is_closed = False

    def stream(self, prompt: Any, on_step: OnStep, **settings: Any) -> Iterator[Chunk]:
        try:
            on_step(StepRecord("chunk", (), self._seconds))
            for step in range(1, self._num_steps + 1):
                self._clock.now += sum(self._seconds.values())
                on_step(StepRecord("step" if step > 1 else "prompt", (), self._seconds))
                result = Result((), "", "length", Stats(), 0, Numerics("exact")) if step == self._num_steps else None
                yield Chunk((step,), f"{step} ", 0, result)
        finally:
            self.is_closed = True


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def lane(name: str, generator: Any) -> Lane:
    return Lane(name, generator)


def test_the_lane_with_fewer_seconds_of_its_own_goes_next(clock: _Clock) -> None:
    lanes = [lane("slow", _Paced(clock, 3.0, 3)), lane("quick", _Paced(clock, 1.0, 7))]
    order = []
    for advanced in race(lanes, "prompt"):
        order.append(advanced.name[0])
        clock.now += 100.0  # what the caller does meanwhile is nobody's
    assert "".join(order) == "sqqqqqsqqs"
    assert [lane.seconds for lane in lanes] == [3.0 + 9.0, 1.0 + 7.0]
    assert [(lane.num_steps, lane.token_ids, lane.text) for lane in lanes] == [
        (3, [1, 2, 3], "1 2 3 "),
        (7, [1, 2, 3, 4, 5, 6, 7], "1 2 3 4 5 6 7 "),
    ]
    assert lanes[1].tokens_per_second == 7 / 8
    assert lanes[1].tokens_per_step == 1.0


def test_a_race_that_is_left_closes_both_streams(clock: _Clock) -> None:
    paced = [_Paced(clock, 1.0, 5), _Paced(clock, 1.0, 5)]
    racing: Any = race([lane("a", paced[0]), lane("b", paced[1])], "prompt")
    for _ in range(2):
        next(racing)
    racing.close()
    assert [generator.is_closed for generator in paced] == [True, True]


def test_both_lanes_write_plain_decodings_text() -> None:
    model, settings = ToyModel.random(sharpness=4.0), {"max_new_tokens": 20, "temperature": 0.7, "seed": 3}
    plain = Generator(model, proposer="autoregressive").generate([1, 2], **settings)
    lanes = [lane(name, Generator(model, proposer=name)) for name in ("lookahead:N=3,W=3,G=3", "jacobi:n=4")]
    advanced = list(race(lanes, [1, 2], **settings))
    assert [tuple(lane.token_ids) for lane in lanes] == [plain.token_ids] * 2
    assert [advanced.count(lane) for lane in lanes] == [lane.result.stats.steps for lane in lanes if lane.result]
    assert first_difference(lanes) is None


@pytest.mark.parametrize(
    ("first", "second", "place"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0)]
)
def test_the_first_difference_is_found(first: list[int], second: list[int], place: int | None) -> None:
    unused: Any = None
    assert first_difference([Lane("a", unused, first), Lane("b", unused, second)]) == place


def test_a_lane_that_has_not_begun_has_no_figures() -> None:
    unused: Any = None
    assert (Lane("a", unused).tokens_per_second, Lane("a", unused).tokens_per_step) == (0.0, 0.0)
