"""The choice where nothing is said."""

from typing import Any

import pytest

from specdec import Budget, Generator, Request, ToyModel
from specdec.decoding.sequence import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto import AutoProposer
from specdec.testing import toy_host


def test_where_the_text_depends_on_drafts_no_clock_is_asked() -> None:
    def measured() -> Any:
        raise AssertionError("costs were asked for")

    host = toy_host(6, reads_q=True)
    object.__setattr__(host, "costs", measured)
    request = Request(TokenView([0, 1, 0, 1]), 1, 6, frozenset(), 0.0, Randomness(0).stream("test"))
    drafter = AutoProposer().bind(host).start(request)
    assert len(drafter.propose(Budget(9, 9, 9))) > 1


def test_a_generator_with_nothing_said_drafts_and_keeps_the_text() -> None:
    model = ToyModel.random(6, sharpness=4.0)
    prompts = [[1, 2, 3], [4], [2, 2]]
    results = Generator(model).generate(prompts, max_new_tokens=40, temperature=0.7, seed=3)
    plain = Generator(model, proposer="autoregressive").generate(prompts, max_new_tokens=40, temperature=0.7, seed=3)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]
    assert sum(one.stats.num_nodes - one.stats.steps for one in results) > 0


@pytest.mark.parametrize("others", ["autoregressive", "jacobi"])
def test_it_drafts_beside_other_strategies(others: str) -> None:
    model = ToyModel.random(6, sharpness=4.0)
    generator = Generator(model)
    results = generator.generate([[1, 2, 3]] * 4, max_new_tokens=60, proposer=["auto", *[others] * 3])
    assert results[0].stats.num_nodes > results[0].stats.steps
    assert len({result.token_ids for result in results}) == 1


def test_without_a_clock_the_same_requests_get_the_same_drafts() -> None:
    model = ToyModel.random(6, sharpness=3.0)
    shapes = []
    for _ in range(2):
        records: list[Any] = []
        host_costs = Generator(model, proposer="auto:clock=false")
        host_costs.generate([1, 2, 3], max_new_tokens=60, on_step=records.append)
        shapes.append([record.width for record in records])
    assert shapes[0] == shapes[1]
