"""Every registered compiler: visibility is the ancestor closure, windows go by position, rows don't see one another."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import DraftTree, Role
from specdec.layout import Shapes, Window
from specdec.masks.visibility import Marks, MaskCache
from specdec.testing import trees
from tests.support.generators import MASKS, REGISTRY, path_to

KINDS: dict[str, Window | None] = {
    "full_attention": None,
    "sliding_attention": Window("sliding", 4),
    "chunked_attention": Window("chunked", 3),
}
SHAPES = Shapes(6, None, True, KINDS, torch.float32, torch.device("cpu"))


def visible_positions(layout: Any, kind: str, row: int, node: int) -> list[int]:
    """The positions that a node sees, according to the mask."""
    length = layout.lengths[row]
    slots = torch.nonzero(layout.visible(kind)[row, node]).flatten().tolist()
    return sorted(slot if slot < length else int(layout.positions[row, slot - length]) for slot in slots)


@pytest.mark.parametrize("mask", MASKS)
@given(batch=st.lists(st.tuples(trees(), st.integers(0, 9)), min_size=1, max_size=3))
def test_a_node_sees_the_prefix_its_ancestors_and_itself(mask: str, batch: list[tuple[DraftTree, int]]) -> None:
    compiler = REGISTRY.make("masks", mask)
    layout = compiler.compile([tree for tree, _ in batch], [length for _, length in batch], SHAPES)
    for row, (tree, length) in enumerate(batch):
        assert layout.input_ids[row, : len(tree)].tolist() == tree.tokens
        for node in range(len(tree)):
            slots = [*range(length), *(length + ancestor for ancestor in path_to(tree, node))]
            seen = torch.nonzero(layout.visible("full_attention")[row, node]).flatten().tolist()
            assert seen == slots
            query = length + tree.depths[node]
            assert int(layout.positions[row, node]) == query
            near = [position for position in range(query + 1) if query - position < 4]
            assert visible_positions(layout, "sliding_attention", row, node) == near
            block = [position for position in range(query + 1) if position // 3 == query // 3]
            assert visible_positions(layout, "chunked_attention", row, node) == block
        for padding in range(len(tree), layout.width):
            for kind in KINDS:
                assert visible_positions(layout, kind, row, padding) == [length]
                assert layout.visible(kind)[row, padding, length + padding]


@pytest.mark.parametrize("mask", MASKS)
@given(batch=st.lists(trees(), min_size=1, max_size=3))
def test_logits_are_wanted_at_roots_candidates_and_probes(mask: str, batch: list[DraftTree]) -> None:
    layout = REGISTRY.make("masks", mask).compile(batch, [5] * len(batch), SHAPES)
    wanted = {0} | {
        node for tree in batch for node in range(len(tree)) if tree.roles[node] & (Role.CANDIDATE | Role.PROBE)
    }
    assert set(layout.columns) == wanted


@pytest.mark.parametrize("mask", MASKS)
@given(shapes=st.lists(trees(), min_size=1, max_size=2))
def test_what_a_compiler_keeps_changes_nothing(mask: str, shapes: list[DraftTree]) -> None:
    unlimited = Shapes(6, None, True, {"full_attention": None}, torch.float32, torch.device("cpu"), row_multiple=4)
    compiler = REGISTRY.make("masks", mask)
    for length in (40, 41, 259, 520):
        for tree in shapes:
            layout = compiler.compile([tree], [length], unlimited)
            for node in range(len(tree)) if layout.masks else ():
                slots = [*range(length), *(length + ancestor for ancestor in path_to(tree, node))]
                assert torch.nonzero(layout.visible("full_attention")[0, node]).flatten().tolist() == slots


def test_a_mask_too_large_to_be_kept_leaves_the_others() -> None:
    kept, marks = MaskCache(), Marks(0.0, -1.0, torch.float32, torch.device("cpu"))
    small, large = DraftTree(0), DraftTree(0)
    large.add_chain(0, range(1, 100))
    first = kept.after_prefix(10, small, 1, marks)
    assert kept.after_prefix(20_000, large, 100, marks).shape == (100, 20_100)
    assert kept.after_prefix(11, small, 1, marks).untyped_storage().data_ptr() == first.untyped_storage().data_ptr()


@pytest.mark.parametrize("mask", MASKS)
@given(
    length=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    kinds=st.sampled_from([None, frozenset({"sliding_attention"}), frozenset({"full_attention"})]),
    other=trees(),
)
def test_nodes_of_a_block_see_one_another_in_its_kinds_of_layer(
    mask: str, length: int, sizes: list[int], kinds: frozenset[str] | None, other: DraftTree
) -> None:
    before, inside, after = sizes
    chain = DraftTree(0)
    chain.add_chain(0, range(1, before + inside + after))
    chain.blocks, chain.block_kinds = (range(before, before + inside),), kinds
    two_kinds = {kind: KINDS[kind] for kind in ("full_attention", "sliding_attention")}
    shapes = Shapes(6, None, True, two_kinds, torch.float32, torch.device("cpu"))
    layout = REGISTRY.make("masks", mask).compile([other, chain], [3, length], shapes)
    for kind in two_kinds:
        ends = dict.fromkeys(chain.blocks[0], before + inside) if kinds is None or kind in kinds else {}
        for node in range(len(chain)):
            last = length + ends.get(node, node + 1)
            first = 0 if kind == "full_attention" else max(0, length + node - 3)
            assert visible_positions(layout, kind, 1, node) == [*range(first, last)]
