"""Lookahead's window and pool, step by step against a grid kept by hand."""

from dataclasses import replace

import numpy as np
import pytest

from specdec import ROOT, Budget, DraftTree, Feedback, LookaheadProposer, Nodes, PluginError, Request, Role, What
from specdec.costs import Costs
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.base import Drafter
from specdec.strategies.lookahead import NgramPool
from specdec.strategies.signals import Answers
from specdec.testing import toy_host

ROOMY = Budget(num_nodes=512, depth=512, num_tokens=512)
EOS = 99


def begin(proposer: LookaheadProposer, tokens: list[int], seed: int = 1) -> Drafter:
    rng = Randomness(seed).stream("test")
    return proposer.start(Request(TokenView(tokens), len(tokens), 1000, frozenset({EOS}), 0.0, rng))


def advance(
    drafter: Drafter, tokens: list[int], tree: DraftTree, predictions: dict[int, int], emitted: list[int]
) -> None:
    """Tell the drafter that ``emitted`` was committed; only as much of the path as the feedback needs is made up."""
    tokens += emitted
    drafter.observe(Feedback(tree, (ROOT,), tuple(emitted), {(Nodes.PROBE, What.ARGMAX): Answers(lambda: predictions)}))


def probes(tree: DraftTree) -> list[int]:
    return [node for node in range(len(tree)) if tree.roles[node] & Role.PROBE]


def columns(tree: DraftTree) -> list[list[int]]:
    """The paths of the window's last level, in order of depth: column j's path has j spine tokens first."""
    return sorted((tree.path(node) for node in probes(tree)), key=len)


def test_the_window_is_a_spine_with_columns() -> None:
    proposer = LookaheadProposer(N=4, W=5, G=0, pool_from_prompt=False)
    tree = begin(proposer, list(range(10, 60))).propose(ROOMY)
    grid = columns(tree)
    assert [len(path) for path in grid] == [2, 3, 4, 5, 6], "column j ends at depth j + N - 2"
    spine = grid[-1][:4]
    assert all(path[:column] == spine[:column] for column, path in enumerate(grid))
    assert len(tree) - 1 <= (5 - 1) + 2 * 5
    candidates = [tree.path(node) for node in tree.nodes_with(Role.CANDIDATE)]
    assert candidates == [grid[0][:1], grid[0]], "column 0 hangs below the root and is a candidate"


def test_levels_grow_older_and_n_grams_are_harvested_column_by_column() -> None:
    N, W = 4, 3
    proposer = LookaheadProposer(N=N, W=W, G=7, pool_from_prompt=False, verify_window=False)
    tokens = list(range(10, 30))
    drafter = begin(proposer, tokens)
    counter = iter(range(100, 1000))
    levels: list[list[int]] = []  # the model's predictions, one list a step
    for step in range(6):
        tree = drafter.propose(ROOMY)
        if step >= N - 1:  # the whole grid comes from predictions now: levels[-3:] are L0, L1, L2
            l0, l1, l2 = levels[-3:]
            assert columns(tree) == [[*l0[1 : 1 + j], l1[j], l2[j]] for j in range(W)]
        predictions = {node: next(counter) for node in sorted(probes(tree), key=lambda node: tree.depths[node])}
        levels.append(list(predictions.values()))
        root = tokens[-1]
        advance(drafter, tokens, tree, predictions, [next(counter)])
        if step >= N - 2:  # column 0's n-gram is kept under the root of that step
            expected = (*(level[0] for level in levels[-3:]),)
            assert expected in list(drafter._pool.lookup(root))  # type: ignore[attr-defined]
    l0, l1, l2, new = levels[-4:]
    for column in range(1, W):
        assert list(drafter._pool.lookup(l0[column])) == [(l1[column], l2[column], new[column])]  # type: ignore[attr-defined]


def test_guesses_of_the_root_are_merged_into_a_trie_most_recent_first() -> None:
    proposer = LookaheadProposer(N=3, W=0, G=2)
    tokens = [5, 1, 2, 5, 1, 3, 5, 4, 4, 5]
    tree = begin(proposer, tokens).propose(ROOMY)
    assert [tree.path(node) for node in range(1, len(tree))] == [[4], [4, 4], [1], [1, 3]], (
        "the oldest of three is gone"
    )


def test_two_guesses_share_their_prefix() -> None:
    tokens = [5, 1, 2, 7, 5, 1, 3, 7, 5]
    tree = begin(LookaheadProposer(N=3, W=0, G=5), tokens).propose(ROOMY)
    assert len(tree) == 1 + 3


def test_prompt_n_grams_are_verified_from_the_first_step_on() -> None:
    tree = begin(LookaheadProposer(N=4, W=5, G=5), [1, 2, 3, 4, 1]).propose(ROOMY)
    assert tree.child(ROOT, 2) is not None


def test_committed_text_joins_the_pool_token_by_token() -> None:
    tokens = [1, 2]
    drafter = begin(LookaheadProposer(N=3, W=0, G=5), tokens)
    advance(drafter, tokens, drafter.propose(ROOMY), {}, [3, 4, 5, 2])
    tree = drafter.propose(ROOMY)
    assert [tree.path(node) for node in range(1, len(tree))] == [[3], [3, 4]]


def test_end_of_text_is_kept_out_of_the_window_and_nothing_follows_it_in_a_guess() -> None:
    tokens = [8, 7, EOS, 8, 7]
    drafter = begin(LookaheadProposer(N=3, W=4, G=5), tokens)
    for _ in range(4):
        tree = drafter.propose(ROOMY)
        for node in probes(tree):
            assert EOS not in tree.path(node)
        advance(drafter, tokens, tree, dict.fromkeys(probes(tree), EOS), [7])
    assert [8] not in [tree.path(node)[1:] for node in tree.nodes_with(Role.CANDIDATE) if tree.path(node)[0] == EOS]


def test_n_of_two_is_jacobi_with_memory() -> None:
    tokens = list(range(10, 30))
    drafter = begin(LookaheadProposer(N=2, W=3, G=2, pool_from_prompt=False), tokens)
    tree = drafter.propose(ROOMY)
    assert len(tree) == 3, "the root and a spine of W - 1"
    old = tree.path(2)
    advance(drafter, tokens, tree, {1: 201, 2: 202}, [200])
    assert drafter.propose(ROOMY).path(2) == [201, 202]
    assert list(drafter._pool.lookup(29)) == [(200,)]  # type: ignore[attr-defined]
    assert list(drafter._pool.lookup(old[0])) == [(201,)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [{"N": 1}, {"W": -1}, {"G": -2}, {"N": 2.5}, {"width": 3}])
def test_impossible_options_are_refused(size: dict[str, float]) -> None:
    for make in (LookaheadProposer, LookaheadProposer.model_validate):
        with pytest.raises(PluginError, match=rf"^LookaheadProposer refused: .*{next(iter(size))}[^\n]*$"):
            make(**size) if make is LookaheadProposer else make(size)


def test_the_pool_drops_the_least_recently_produced() -> None:
    pool = NgramPool(2)
    for continuation in ((1,), (2,), (1,), (3,)):
        pool.add(0, continuation)
    assert list(pool.lookup(0)) == [(3,), (1,)]
    unlimited, none = NgramPool(-1), NgramPool(0)
    for index in range(100):
        unlimited.add(0, (index,))
        none.add(0, (index,))
    assert len(list(unlimited.lookup(0))) == 100
    assert list(none.lookup(0)) == []


def test_windows_of_two_seeds_differ_and_of_one_seed_agree() -> None:
    tokens = list(np.random.default_rng(0).integers(0, 90, size=50))
    grids = [columns(begin(LookaheadProposer(), tokens, seed).propose(ROOMY)) for seed in (1, 1, 2)]
    assert grids[0] == grids[1] != grids[2]


@pytest.mark.parametrize(
    ("proposer", "warns"), [(LookaheadProposer(N=3, W=8, G=1), True), (LookaheadProposer(N=5, W=1, G=9), False)]
)
def test_a_window_that_can_only_lose_is_honoured_with_a_warning(proposer: LookaheadProposer, warns: bool) -> None:
    """A device on which a pass over T nodes costs T / 4 plain ones: 16 nodes can't be worth it where 3 tokens come."""
    host = replace(toy_host(6, reads_q=False), costs=lambda: Costs((1, 101), (1.0, 26.0), 1.0))
    if warns:
        told = r"N=3, W=8 forwards at least 16 nodes .* takes 4\.8 times .* at most 3 tokens"
        with pytest.warns(UserWarning, match=told):
            proposer.bind(host)
    else:
        proposer.bind(host)
