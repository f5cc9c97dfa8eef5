"""c(T): what is measured, by a clock of its own, and what is read off between."""

from types import SimpleNamespace
from typing import Any

import pytest

from specdec import Generator, ToyModel
from specdec.backends.toy import ToyBackend
from specdec.costs import Costs, measure_costs
from specdec.driver import Driver
from specdec.masks.dense import DenseCompiler
from tests import families


def test_between_sizes_and_beyond_them_costs_are_linear() -> None:
    costs = Costs((1, 4, 8), (1.0, 4.0, 6.0), 0.5)
    assert [costs.at(size) for size in (1, 2.5, 4, 6, 8, 12)] == [1.0, 2.5, 4.0, 5.0, 6.0, 8.0]
    assert costs.relative == (2.0, 8.0, 12.0)
    assert Costs((1, 4), (2.0, 1.9), 2.0).at(100) == 1.9  # noise is not a promise


def test_the_median_time_of_each_size_is_what_it_costs() -> None:
    """A driver whose pass takes 10 + T by its own clock, every fifth pass a hundred times as long."""
    now, passes, open_rows = [0.0], [0], [0]

    def forward(trees: list[Any]) -> None:
        passes[0] += 1
        now[0] += (10 + len(trees[0])) * (100 if passes[0] % 5 == 0 else 1)

    def count(by: int) -> None:
        open_rows[0] += by

    shapes = SimpleNamespace(vocab_size=1000, max_positions=None, takes_trees=True)
    driver: Any = SimpleNamespace(
        shapes=shapes, open=lambda *_: count(1), forward=forward, release=lambda *_: count(-1)
    )
    costs = measure_costs(driver, sizes=(1, 3, 20), clock=lambda: now[0])
    assert costs == Costs((1, 3, 20), (11.0, 13.0, 30.0), 11.0)
    assert open_rows == [0]


def test_an_ordinary_plain_step_is_measured_beside_them() -> None:
    now = [0.0]

    def driver(seconds: float) -> Any:
        def forward(trees: list[Any]) -> None:
            now[0] += seconds + len(trees[0])

        shapes = SimpleNamespace(vocab_size=1000, max_positions=None, takes_trees=True)
        return SimpleNamespace(shapes=shapes, open=lambda *_: None, forward=forward, release=lambda _: None)

    costs = measure_costs(driver(9.0), sizes=(1, 3), clock=lambda: now[0], plain=driver(4.0))
    assert costs == Costs((1, 3), (10.0, 12.0), 5.0)
    assert costs.relative == (2.0, 2.4)


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
    """A driver whose pass takes T seconds of its own clock, and 40 seconds for everything."""
    now = [0.0]

    def forward(trees: list[Any]) -> None:
        now[0] += len(trees[0])

    shapes = SimpleNamespace(vocab_size=1000, max_positions=None, takes_trees=True)
    driver: Any = SimpleNamespace(shapes=shapes, open=lambda *_: None, forward=forward, release=lambda _: None)
    costs = measure_costs(driver, clock=lambda: now[0], seconds=40.0)
    assert costs == Costs((1, 8, 32, 128), (1.0, 8.0, 32.0, 128.0), 1.0)
    assert now[0] < 2 * 40


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_row_is_left_open_where_a_pass_fails(error: type[BaseException]) -> None:
    generator = Generator(ToyModel.random(6), proposer="autoregressive")
    driver = generator.driver()

    def fail(_: Any) -> None:
        raise error

    driver.forward = fail  # type: ignore[assignment, method-assign]  # in place of a model that does
    with pytest.raises(error):
        measure_costs(driver, sizes=(1, 2), repeats=1)
    assert driver.lengths == []


def test_passes_that_there_is_no_memory_for_count_in_proportion() -> None:
    now = [0.0]

    def forward(trees: list[Any]) -> None:
        if len(trees[0]) > 8:
            raise RuntimeError("out of memory")
        now[0] += len(trees[0])

    shapes = SimpleNamespace(vocab_size=1000, max_positions=None, takes_trees=True)
    driver: Any = SimpleNamespace(shapes=shapes, open=lambda *_: None, forward=forward, release=lambda _: None)
    costs = measure_costs(driver, sizes=(1, 8, 32), clock=lambda: now[0])
    assert costs == Costs((1, 8, 32), (1.0, 8.0, 32.0), 1.0)


def test_chains_are_as_long_as_what_they_stand_for() -> None:
    sizes: list[int] = []

    def forward(trees: list[Any]) -> None:
        sizes.append(len(trees[0]))

    shapes = SimpleNamespace(vocab_size=1000, max_positions=None, takes_trees=False)
    driver: Any = SimpleNamespace(shapes=shapes, open=lambda *_: None, forward=forward, release=lambda _: None)
    measure_costs(driver, sizes=(1, 32, 128), context=16)
    assert set(sizes) == {1, 32, 128}
