"""The choice where nothing is said."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from specdec import Budget, DraftTree, Feedback, Generator, Request, ToyModel
from specdec.costs import Costs
from specdec.decoding.request_state import TokenView
from specdec.record import Outcome, StepRecord
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.proposer import AutoProposer
from specdec.testing import toy_host

ANY_REQUEST = Mock()  # one for all: making it takes longer than a step


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


def widths(clock: bool, seconds_of: Callable[[int], float]) -> list[int]:
    """The nodes of each step of a text that repeats itself, where a step of so many takes so long."""
    host = replace(toy_host(6, reads_q=False), costs=lambda: Costs((1, 101), (1.0, 2.0), 1.0))
    engine, tokens = AutoProposer(clock=clock).bind(host), [0, 1, 2, 3] * 4
    drafter = engine.start(Request(TokenView(tokens), len(tokens), 6, frozenset(), 0.0, Randomness(0).stream("test")))
    told = []
    for _ in range(60):
        tree = engine.propose_many([drafter], [Budget(99, 99, 99)])[0]
        assert isinstance(tree, DraftTree)
        token = (tokens[-1] + 1) % 4
        tokens.append(token)
        drafter.observe(Feedback(tree, (0,), (token,)))
        outcome = Outcome(ANY_REQUEST, tree=tree, path=(0,), tokens=(token,), num_nodes=len(tree))
        engine.learn(StepRecord("step", (outcome,), {"forward": seconds_of(len(tree))}, width=len(tree)), [outcome])
        told.append(len(tree))
    return told


def test_without_a_clock_drafts_dont_depend_on_what_steps_take() -> None:
    assert max(widths(False, lambda _: 1.0)) > 1
    assert widths(False, lambda _: 1.0) == widths(False, float)
    assert widths(True, lambda _: 1.0) != widths(True, float)
