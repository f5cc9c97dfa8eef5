"""Draft trees: a trie by path, whatever the order of insertion; illegal ones are refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import ROOT, Budget, DraftTree, PluginError, Role
from specdec.tree import merge

ROOMY = Budget(num_nodes=100, depth=100, num_tokens=100)
PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8)


def tree_of(paths: list[list[int]], role: Role = Role.CANDIDATE) -> DraftTree:
    tree = DraftTree(9)
    for path in paths:
        tree.add_chain(ROOT, path, role)
    return tree


def paths_in(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(tree.path(node)) for node in range(1, len(tree))}


@given(PATHS)
def test_a_tree_has_one_node_for_each_distinct_prefix(paths: list[list[int]]) -> None:
    prefixes = {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    tree = tree_of(paths)
    assert paths_in(tree) == prefixes
    assert len(tree) == len(prefixes) + 1
    assert all(tree.depths[node] == len(tree.path(node)) for node in range(len(tree)))
    tree.check(9, 10, ROOMY, "test")


@given(PATHS, PATHS)
def test_merging_unites_paths_roles_and_draws(ours: list[list[int]], theirs: list[list[int]]) -> None:
    a, b = tree_of(ours), tree_of(theirs, Role.SUPPORT)
    merged = merge([a, b])
    assert paths_in(merged) == paths_in(a) | paths_in(b)
    for node in range(1, len(merged)):
        path = tuple(merged.path(node))
        assert bool(merged.roles[node] & Role.CANDIDATE) == (path in paths_in(a))
        assert bool(merged.roles[node] & Role.SUPPORT) == (path in paths_in(b))
    assert sum(map(len, merged.draws.values())) == sum(map(len, a.draws.values()))
    merged.check(9, 10, ROOMY, "test")


def test_two_draws_of_one_token_are_one_node_and_two_draws_in_order() -> None:
    tree = DraftTree(9)
    node = tree.add(ROOT, 3)
    other = tree.add(ROOT, 4)
    assert tree.add(ROOT, 3) == node
    assert [draw.child for draw in tree.draws[ROOT]] == [node, other, node]
    merged = merge([tree, tree])
    assert [draw.child for draw in merged.draws[ROOT]] == [node, other, node] * 2


@pytest.mark.parametrize("parent", [-1, 2, 57])
def test_nothing_is_added_below_a_node_that_is_not_there(parent: int) -> None:
    tree = DraftTree(9)
    tree.add(ROOT, 3)
    with pytest.raises(IndexError, match=f"no node {parent} to add below: this tree has nodes 0 to 1"):
        tree.add(parent, 4)
    assert tree.tokens == [9, 3]


def test_only_candidates_are_found_as_children() -> None:
    tree = DraftTree(9)
    support = tree.add(ROOT, 3, Role.SUPPORT)
    assert tree.child(ROOT, 3) is None
    tree.add(ROOT, 3, Role.CANDIDATE)
    assert tree.child(ROOT, 3) == support
    assert tree.child(ROOT, 4) is None


def test_the_longest_chain_leads_to_the_deepest_candidate() -> None:
    tree = tree_of([[1, 2], [3, 4, 5], [6]])
    tree.add_chain(ROOT, [7, 7, 7, 7], Role.SUPPORT)
    assert paths_in(tree.longest_chain()) == {(3,), (3, 4), (3, 4, 5)}
    assert len(DraftTree(9).longest_chain()) == 1


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tree: tree.tokens.__setitem__(0, 8), "its root is token 8, but the last committed token is 9"),
        (lambda tree: tree.tokens.__setitem__(2, 10), "node 2 has token 10, outside the vocabulary of 10"),
        (lambda tree: tree.tokens.__setitem__(2, 5), "node 2 below 1 was not made by add()"),
        (lambda tree: tree.parents.__setitem__(1, 2), "node 1 below 2 was not made by add()"),
    ],
)
def test_a_tampered_tree_is_refused_by_name(change: object, fault: str) -> None:
    tree = tree_of([[1, 2, 3]])
    change(tree)  # type: ignore[operator]
    with pytest.raises(
        PluginError, match=r"proposer Author returned an illegal tree: " + fault.replace("(", r"\(").replace(")", r"\)")
    ):
        tree.check(9, 10, ROOMY, "Author")


def test_budgets_bind() -> None:
    tree = tree_of([[1, 2, 3]])
    with pytest.raises(PluginError, match="3 nodes below the root, but the budget is 2"):
        tree.check(9, 10, Budget(2, 9, 9), "Author")
    with pytest.raises(PluginError, match="node 3 is 3 deep, but the budget allows 2"):
        tree.check(9, 10, Budget(9, 2, 9), "Author")
