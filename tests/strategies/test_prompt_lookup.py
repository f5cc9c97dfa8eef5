"""Prompt lookup against a search written with slices."""

from hypothesis import given
from hypothesis import strategies as st

from specdec import ROOT, Budget, DraftTree, PromptLookupProposer, Request
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness

ROOMY = Budget(num_nodes=512, depth=512, num_tokens=512)


def propose(proposer: PromptLookupProposer, tokens: list[int], eos: int = -1) -> DraftTree:
    request = Request(TokenView(tokens), len(tokens), 1000, frozenset({eos}), 0.0, Randomness(0).stream("test"))
    return proposer.start(request).propose(ROOMY)


def branches(tree: DraftTree) -> list[list[int]]:
    leaves = [node for node in range(1, len(tree)) if node not in tree.parents]
    return [tree.path(node) for node in leaves]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4), st.booleans())
def test_one_match_is_the_longest_and_most_recent_or_first(tokens: list[int], max_ngram: int, recent: bool) -> None:
    prefer = "recent" if recent else "first"
    tree = propose(PromptLookupProposer(max_ngram=max_ngram, num_tokens=4, prefer=prefer), tokens)
    expected: list[int] = []
    for n in range(min(max_ngram, len(tokens) - 1), 0, -1):
        starts = [s for s in range(len(tokens) - n) if tokens[s : s + n] == tokens[-n:]]
        if starts:
            start = max(starts) if recent else min(starts)
            period = tokens[start + n :]
            expected = (period * 4)[:4]
            break
    assert branches(tree) == ([expected] if expected else [])


def test_several_matches_become_one_tree_longest_first() -> None:
    tokens = [1, 2, 3, 9, 2, 3, 8, 7, 3, 6, 1, 2, 3]
    assert branches(propose(PromptLookupProposer(num_tokens=2, num_matches=1), tokens)) == [[9, 2]]
    assert branches(propose(PromptLookupProposer(num_tokens=2, num_matches=3), tokens)) == [[9, 2], [8, 7], [6, 1]]


def test_equal_continuations_count_once() -> None:
    tokens = [1, 2, 3, 1, 2, 3, 1, 4, 1, 2, 3, 1]
    assert branches(propose(PromptLookupProposer(max_ngram=1, num_tokens=1, num_matches=2), tokens)) == [[2], [4]]


def test_nothing_is_proposed_behind_an_end_of_text() -> None:
    assert branches(propose(PromptLookupProposer(num_tokens=5), [1, 2, 9, 4, 1], eos=9)) == [[2, 9]]


def test_the_last_tokens_themselves_are_no_match() -> None:
    assert len(propose(PromptLookupProposer(), [1, 2, 3])) == 1
    assert propose(PromptLookupProposer(), [7]).tokens == [7]


def test_a_match_next_to_the_end_goes_on_with_its_period() -> None:
    assert branches(propose(PromptLookupProposer(num_tokens=5), [1, 2, 1, 2])) == [[1, 2, 1, 2, 1]]
    assert propose(PromptLookupProposer(num_tokens=3), [4, 4]).child(ROOT, 4) is not None
