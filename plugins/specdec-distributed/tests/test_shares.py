"""The laws of shares: each is closed under ancestors, every node has one owner, and none is larger than need be."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from specdec_distributed.shares import shares_of

from specdec.tree import ROOT, DraftTree
from tests.support.generators import random_tree

SEEDS, SIZES = st.integers(0, 10**6), st.integers(0, 60)


@given(seed=SEEDS, num_nodes=SIZES, num_ranks=st.integers(1, 5))
def test_shares_are_closed_and_every_node_has_one_owner(seed: int, num_nodes: int, num_ranks: int) -> None:
    tree = random_tree(np.random.default_rng(seed), 99, num_nodes)
    shares = shares_of(tree.parents, tree.depths, num_ranks)
    assert len(shares) == num_ranks
    assert sorted(node for share in shares for node in share.owned) == list(range(len(tree)))
    for share in shares:
        assert ROOT in share.nodes
        assert list(share.nodes) == sorted(set(share.nodes))
        assert share.owned <= set(share.nodes)
        assert all(tree.parents[node] in share.nodes for node in share.nodes if node != ROOT)


@given(seed=SEEDS, num_nodes=SIZES, num_ranks=st.integers(1, 5))
def test_no_share_is_larger_than_an_equal_part_with_its_ancestors(seed: int, num_nodes: int, num_ranks: int) -> None:
    tree = random_tree(np.random.default_rng(seed), 99, num_nodes)
    shares = shares_of(tree.parents, tree.depths, num_ranks)
    if any(share.owned for share in shares[1:]) or num_ranks == 1:
        assert max(len(share.nodes) for share in shares) <= math.ceil(len(tree) / num_ranks) + max(tree.depths)


@given(length=st.integers(1, 40), num_ranks=st.integers(1, 4))
def test_every_rank_forwards_all_of_a_chain(length: int, num_ranks: int) -> None:
    chain = DraftTree(0)
    chain.add_chain(ROOT, range(1, length))
    for share in shares_of(chain.parents, chain.depths, num_ranks):
        assert share.nodes == tuple(range(length))


def test_the_window_of_lookahead_is_divided_into_columns() -> None:
    """15 columns of 4 levels: level 0 is a chain, and each of its nodes has the rest of its column below it."""
    window = DraftTree(0)
    heads = [ROOT, *window.add_chain(ROOT, range(100, 114))]
    for column, head in enumerate(heads):
        window.add_chain(head, range(200 + 10 * column, 203 + 10 * column))
    first, second = shares_of(window.parents, window.depths, 2)
    assert len(window) == 60
    assert max(len(first.nodes), len(second.nodes)) <= 36


def test_what_lies_above_the_first_fork_is_in_every_share() -> None:
    tree = DraftTree(0)
    stem = tree.add_chain(ROOT, [1, 2, 3])
    for token in range(10, 20):
        tree.add(stem[-1], token)
    for share in shares_of(tree.parents, tree.depths, 3):
        assert {ROOT, *stem} <= set(share.nodes)
        assert len(share.nodes) <= 8
