"""Suffix decoding: what was written before, by this request and by the last ones."""

from dataclasses import replace

import pytest

from specdec import Budget, Drafter, Engine, Request
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.sources.suffix import SuffixEngine, SuffixProposer
from specdec.testing import toy_host

ROOMY = Budget(99, 99, 99)


def begun(engine: Engine, tokens: list[int], prompt_length: int = 1) -> Drafter:
    request = Request(TokenView(tokens), prompt_length, 100, frozenset(), 0.0, Randomness(0).stream("test"))
    return engine.start(request)


def test_the_longest_match_is_continued_first() -> None:
    engine = SuffixProposer(num_nodes=4, min_probability=0.0).bind(toy_host(100, reads_q=False))
    tree = begun(engine, [1, 2, 3, 4, 5, 9, 3, 6, 1, 2, 3]).propose(ROOMY)
    assert tree.path(1) == [4]  # behind 1 2 3; 6 stood behind 3 alone
    assert [4, 5, 9] in [tree.path(node) for node in range(len(tree))]


def test_a_model_without_trees_gets_a_chain_of_all_nodes() -> None:
    host = replace(toy_host(10, reads_q=False), takes_trees=False)
    engine = SuffixProposer(num_nodes=3, min_probability=0.0).bind(host)
    tree = begun(engine, [6, 7, 8, 6, 9, 4, 6]).propose(Budget(8, 8, 9))
    assert (tree.tokens, tree.parents) == ([6, 9, 4, 6], [-1, 0, 1, 2]), "7, the other follower of 6, gets no node"


def test_what_is_committed_later_is_found_too() -> None:
    tokens = [1, 2]
    drafter = begun(SuffixProposer().bind(toy_host(100, reads_q=False)), tokens)
    assert len(drafter.propose(ROOMY)) == 1
    tokens += [7, 1, 2]
    assert drafter.propose(ROOMY).path(1) == [7]


@pytest.mark.parametrize(("num_remembered", "finds"), [(0, False), (100, True)])
def test_earlier_answers_are_remembered_where_that_is_wished(num_remembered: int, finds: bool) -> None:
    engine = SuffixProposer(num_remembered=num_remembered).bind(toy_host(100, reads_q=False))
    first = begun(engine, [50, 1, 2, 3, 4], prompt_length=1)
    first.propose(ROOMY)
    first.stop()
    assert (len(begun(engine, [60, 1, 2]).propose(ROOMY)) > 1) == finds
    assert len(begun(engine, [60, 50]).propose(ROOMY)) == 1  # the prompt isn't an answer
    engine.forget()
    assert len(begun(engine, [60, 1, 2]).propose(ROOMY)) == 1


def test_memory_stays_bounded_over_many_requests() -> None:
    engine = SuffixProposer(num_remembered=1000).bind(toy_host(100, reads_q=False))
    assert isinstance(engine, SuffixEngine)
    for index in range(100):
        begun(engine, [0, *(index * 7 + token * token % 90 for token in range(90))]).stop()
        assert sum(map(len, engine.past)) <= 1000 + 2 * 100
    assert len(engine.past) == 2
