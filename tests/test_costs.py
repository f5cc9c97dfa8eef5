"""c(T): what is measured, by a clock of its own, and what is read off between."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specdec import Generator, ToyModel
from specdec.backends.toy import ToyBackend
from specdec.costs import Costs
from specdec.masks.dense import DenseCompiler
from specdec.probes.costs import measure_costs
from specdec.target import Driver
from specdec.tree import DraftTree
from tests import families


class Timed(Driver):
    """A driver whose passes take as long as they are said to, by a clock of its own."""

    def __init__(self, seconds: Callable[[int], float], takes_trees: bool = True) -> None:
        super().__init__(ToyBackend.load(ToyModel(lambda _: [0.001] * 1000, 1000), DenseCompiler()), DenseCompiler())
        self._backend.shapes = replace(self.shapes, takes_trees=takes_trees)
        self.seconds, self.now, self.passes = seconds, 0.0, list[tuple[int, int]]()

    def forward(self, trees: Sequence[DraftTree]) -> list[Any]:
        rows = super().forward(trees)
        self.now += self.seconds(len(trees[0]))
        self.passes.append((self.lengths[0], len(trees[0])))
        return rows

    def costs(self, **options: Any) -> Costs:
        costs = measure_costs(self, clock=lambda: self.now, **options)
        assert not self.lengths
        return costs


def test_between_sizes_and_beyond_them_costs_are_linear() -> None:
    costs = Costs((1, 4, 8), (1.0, 4.0, 6.0), 0.5)
    assert [costs.at(size) for size in (1, 2.5, 4, 6, 8, 12)] == [1.0, 2.5, 4.0, 5.0, 6.0, 8.0]
    assert costs.relative == (2.0, 8.0, 12.0)
    assert Costs((1, 4), (2.0, 1.9), 2.0).at(100) == 1.9  # noise is not a promise


def test_the_median_time_of_each_size_is_what_it_costs() -> None:
    driver = Timed(lambda size: (10 + size) * (100 if len(driver.passes) % 5 == 0 else 1))
    assert driver.costs(sizes=(1, 3, 20)) == Costs((1, 3, 20), (11.0, 13.0, 30.0), 11.0)


def test_an_ordinary_plain_step_is_measured_beside_them() -> None:
    driver, plain = Timed(lambda size: 9.0 + size), Timed(float)
    plain.seconds = lambda size: setattr(driver, "now", driver.now + 4.0 + size) or 0.0  # type: ignore[func-returns-value]
    costs = driver.costs(sizes=(1, 3), plain=plain)
    assert costs == Costs((1, 3), (10.0, 12.0), 5.0)
    assert costs.relative == (2.0, 2.4)


def test_passes_that_will_be_faster_are_not_timed() -> None:
    """The first three passes over several nodes, and the first five over one, take ten times as long."""
    seen = {True: 0, False: 0}

    def seconds(size: int) -> float:
        seen[size == 1] += 1
        driver._backend.is_settled = seen[size == 1] > (5 if size == 1 else 3)
        return size if driver._backend.is_settled else 10.0 * size

    driver = Timed(seconds)
    assert driver.costs(sizes=(1, 4, 8), repeats=0, context=16) == Costs((1, 4, 8), (1.0, 4.0, 8.0), 1.0)
    assert {length for length, _ in driver.passes[:6]} == {16, 17}
    assert {length for length, _ in driver.passes[-3:]} == {16}


def test_what_will_always_be_faster_later_is_waited_for_as_long_as_there_is_time() -> None:
    driver = Timed(lambda size: size)
    driver._backend.is_settled = False
    assert driver.costs(sizes=(1, 4), repeats=0).sizes == (1, 4)
    assert len(driver.passes) < 30
    assert Timed(lambda size: size).costs(sizes=(1, 4), repeats=0, seconds=3.0).sizes == (1, 4)


@pytest.mark.parametrize("max_positions", [None, 64])
def test_a_real_driver_takes_it(max_positions: int | None) -> None:
    compiler = DenseCompiler()
    model = ToyModel(lambda _: [0.25] * 4, 4, max_positions)
    costs = measure_costs(Driver(ToyBackend.load(model, compiler), compiler), sizes=(1, 2, 8), repeats=1)
    assert costs.sizes == (1, 2, 8)
    assert all(seconds > 0 for seconds in costs.seconds)


def test_a_model_of_few_positions_is_measured_within_them() -> None:
    model = families.make("GPT2Config", {**families.GPT, "n_positions": 24})
    costs = Generator(model).costs()
    assert max(costs.sizes) == 33
    assert len(Generator(model).generate([1, 2], max_new_tokens=22).token_ids) == 22


def test_where_time_is_short_sizes_are_spread_and_larger_ones_count_in_proportion() -> None:
    driver = Timed(lambda size: size)
    assert driver.costs(seconds=40.0) == Costs((1, 8, 32, 128), (1.0, 8.0, 32.0, 128.0), 1.0)
    assert driver.now < 3 * 40


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_row_is_left_open_where_a_pass_fails(error: type[BaseException]) -> None:
    generator = Generator(ToyModel.random(6), proposer="autoregressive")
    driver = generator.open_target()

    def fail(_: Any) -> None:
        raise error

    driver.forward = fail  # type: ignore[assignment, method-assign]  # in place of a model that does
    with pytest.raises(error):
        measure_costs(driver, sizes=(1, 2), repeats=1)
    assert driver.lengths == []


def test_passes_that_there_is_no_memory_for_count_in_proportion() -> None:
    def seconds(size: int) -> float:
        if size > 8:
            raise RuntimeError("out of memory")
        return size

    assert Timed(seconds).costs(sizes=(1, 8, 32)) == Costs((1, 8, 32), (1.0, 8.0, 32.0), 1.0)


def test_chains_are_as_long_as_what_they_stand_for() -> None:
    driver = Timed(lambda size: size, takes_trees=False)
    driver.costs(sizes=(1, 32, 128), context=16)
    assert {size for _, size in driver.passes} == {1, 32, 128}
