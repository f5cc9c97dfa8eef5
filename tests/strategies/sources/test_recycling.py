"""Token recycling: the target's own predictions, found again."""

import pytest
import torch

from specdec import Budget, DraftTree, Feedback, Request
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.signals import Answers, Nodes, TopLogits
from specdec.strategies.sources.recycling import RecyclingEngine, TokenRecyclingProposer
from specdec.testing import toy_host

ROOMY = Budget(99, 99, 99)
SIGNAL = (Nodes.ALL, TopLogits(2))


def begun(tokens: list[int], noise: torch.Tensor | None = None, **options: int) -> tuple[RecyclingEngine, Request]:
    engine = TokenRecyclingProposer(k=2, **options).bind(toy_host(50, reads_q=False))
    assert isinstance(engine, RecyclingEngine)
    told = None if noise is None else (lambda _: noise)
    temperature = 0.0 if noise is None else 1.0
    rng = Randomness(0).stream("test")
    return engine, Request(TokenView(tokens), 1, 50, frozenset(), temperature, rng, noise=told)


def test_predictions_of_every_node_are_kept_by_the_last_token_and_by_the_last_two() -> None:
    tokens = [8, 1]
    engine, request = begun(tokens)
    drafter = engine.start(request)
    tree = DraftTree(1)
    wrong = tree.add(0, 2)
    tokens.append(3)
    told = {0: ((3, 4), (5.0, 1.0)), wrong: ((6, 7), (5.0, 1.0))}
    drafter.propose(ROOMY)
    drafter.receive(Feedback(tree, (0,), (3,), {SIGNAL: Answers(lambda: told)}))
    assert engine.of_pair == {(8, 1): told[0], (1, 2): told[wrong]}
    assert engine.of_token == {1: told[0], 2: told[wrong]}
    tokens += [9, 2]
    assert drafter.propose(ROOMY).path(1) == [6]  # a rejected node's prediction, by the token alone


def test_where_it_draws_the_likeliest_is_what_the_noise_makes_of_it() -> None:
    noise = torch.zeros(50)
    noise[4] = 3.0
    engine, request = begun([8, 1], noise)
    engine.remember([1], [-1], 8, {0: ((3, 4), (2.0, 1.0))})
    assert engine.start(request).propose(ROOMY).path(1) == [4]
    engine, request = begun([8, 1])
    engine.remember([1], [-1], 8, {0: ((3, 4), (2.0, 1.0))})
    assert engine.start(request).propose(ROOMY).path(1) == [3]


@pytest.mark.parametrize("num_pairs", [0, 1, 20])
def test_the_tables_are_bounded_and_keep_what_was_noted_last(num_pairs: int) -> None:
    engine, _ = begun([1], num_pairs=num_pairs)
    for index in range(300):
        engine.remember([index % 7], [-1], index % 40, {0: ((index % 5,), (0.0,))})
        assert max(len(engine.of_pair), len(engine.of_token)) <= num_pairs
    if num_pairs:
        assert (299 % 40, 299 % 7) in engine.of_pair
    engine.forget()
    assert not engine.of_pair
    assert not engine.of_token
