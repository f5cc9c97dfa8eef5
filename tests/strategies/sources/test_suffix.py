"""Suffix decoding: what was written before in the request's own text."""

from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, Drafter, Engine, Feedback, Request
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.sources.suffix import SuffixProposer
from specdec.testing import toy_host
from tests.support.examples import examples

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


def chains(num_nodes: int = 6, min_probability: float = 0.0) -> Engine:
    """The engine of a model without trees."""
    proposer = SuffixProposer(num_nodes=num_nodes, min_probability=min_probability)
    return proposer.bind(replace(toy_host(100, reads_q=False), takes_trees=False))


def follower(text: list[int], path: list[int]) -> int | None:
    """What followed the longest suffix of a path's text most often in the text itself; of equals the latest."""
    whole = text + path
    for length in range(min(len(whole), 16), 0, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == whole[-length:]]
        if ends:
            counts = Counter(text[end] for end in reversed(ends))
            return counts.most_common(1)[0][0]
    return None


@examples(40)
@given(text=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_a_chain_is_what_followed_the_longest_match_most_often(text: list[int]) -> None:
    tree = begun(chains(), list(text)).propose(Budget(8, 8, 9))
    expected = list[int]()
    while len(expected) < 6 and (token := follower(text, expected)) is not None:
        expected.append(token)
    assert tree.tokens[1:] == expected
    assert tree.is_chain
    assert tree.probs.keys() == tree.proposed_by.keys() == set(range(1, len(tree)))


def test_a_chain_ends_at_the_end_of_text_and_where_it_is_improbable_or_refused() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    drafter = begun(chains(), list(text))
    assert drafter.propose(ROOMY).tokens == [2, 3, 4, 5, 1, 2, 3]
    assert drafter.propose(Budget(99, 99, 4)).tokens == [2, 3, 4, 5]
    assert len(begun(chains(min_probability=0.9), list(text)).propose(ROOMY)) == 1
    request = replace(drafter.request, eos_token_ids=frozenset([4]))
    assert chains().start(request).propose(ROOMY).tokens == [2, 3, 4]
    refusing = Mock(**{"allows.side_effect": lambda token: token != 4})
    refusing.follow.return_value = refusing
    assert chains().start(replace(request, constraint=lambda: refusing)).propose(ROOMY).tokens == [2, 3]


@pytest.mark.parametrize("is_right", [True, False])
def test_the_rates_of_chains_are_learnt_from_what_was_emitted(is_right: bool) -> None:
    """The whole chain after right tokens, and none after wrong ones."""
    engine = chains(min_probability=0.3)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    before = len(begun(engine, text).propose(ROOMY))
    for _ in range(40):
        drafter = begun(engine, text)
        tree = drafter.propose(ROOMY)
        tokens = (3, 4, 5, 6, 7, 8, 1) if is_right else (9,)
        drafter.observe(Feedback(tree, (0,), tokens))
    after = len(begun(engine, text).propose(ROOMY))
    assert 1 < before < 7
    assert after == (7 if is_right else 1)


def test_what_is_committed_later_is_found_too() -> None:
    tokens = [1, 2]
    drafter = begun(SuffixProposer().bind(toy_host(100, reads_q=False)), tokens)
    assert len(drafter.propose(ROOMY)) == 1
    tokens += [7, 1, 2]
    assert drafter.propose(ROOMY).path(1) == [7]
