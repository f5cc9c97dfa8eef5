"""The walk compares every kind of pass, and holds each layout against the law."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import ROOT, DraftTree
from specdec.backends.hf import HFBackend
from specdec.backends.toy import ToyBackend, ToyModel
from specdec.layout import Layout, Shapes, Window
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.exact.regions import Region, with_regions
from specdec.runtime.probes.walk import WrongLayout, fault_of, walk
from specdec.target import Target
from tests.support import families, planted
from tests.support.examined import examined_target

LENGTH = 5
SEES = {0: [0], 1: [0, 1], 2: [0, 2], 3: [0, 2, 3]}  # node -> its lineage in the tree below
DEPTHS = [0, 1, 1, 2]


def branching() -> DraftTree:
    tree = DraftTree(50)
    tree.add(ROOT, 51)
    tree.add(tree.add(ROOT, 52), 53)
    return tree


def shapes(window: Window | None = None, max_positions: int | None = None) -> Shapes:
    return Shapes(96, max_positions, True, {"kind": window}, torch.float32, torch.device("cpu"))


def by_hand(seen: Sequence[Sequence[int]]) -> Layout:
    """A layout of the tree above whose nodes see these slots."""
    mask = torch.full((1, 1, 4, LENGTH + 4), -torch.inf)
    for node, slots in enumerate(seen):
        mask[0, 0, node, list(slots)] = 0.0
    ids, positions = torch.tensor([[50, 51, 52, 53]]), torch.tensor([[LENGTH + depth for depth in DEPTHS]])
    return Layout((LENGTH,), (4,), ids, positions, {"kind": mask}, (0, 1, 2, 3))


def law(window: Window | None = None) -> list[list[int]]:
    """The slots that each node must see, from the definition of windows by position."""
    positions = [*range(LENGTH), *(LENGTH + depth for depth in DEPTHS)]
    seen = []
    for node, lineage in SEES.items():
        slots = [*range(LENGTH), *(LENGTH + ancestor for ancestor in lineage)]
        own = LENGTH + DEPTHS[node]
        if window is None:
            seen.append(slots)
        elif window.kind == "sliding":
            seen.append([slot for slot in slots if own - window.size < positions[slot]])
        else:
            seen.append([slot for slot in slots if own // window.size == positions[slot] // window.size])
    return seen


def target_of(model: PreTrainedModel, compiler: Any) -> Target:
    return examined_target(HFBackend.load(model, compiler))


WINDOWS = [None, Window("sliding", 3), Window("chunked", 4)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_layout_by_the_law_has_no_fault_and_each_single_wrong_bit_is_one(window: Window | None) -> None:
    assert fault_of(by_hand(law(window)), [branching()], [LENGTH], shapes(window)) == ""
    for node in range(4):
        for slot in range(LENGTH + 4):
            seen = law(window)
            is_seen = slot in seen[node]
            seen[node] = [other for other in seen[node] if other != slot] if is_seen else [*seen[node], slot]
            expected = f"node {node} {'does not see' if is_seen else 'sees'} slot {slot}"
            assert fault_of(by_hand(seen), [branching()], [LENGTH], shapes(window)) == expected


def test_a_window_by_slots_in_place_of_positions_is_a_fault() -> None:
    window = Window("sliding", 3)
    by_slot = [[slot for slot in slots if LENGTH + node - slot < 3] for node, slots in enumerate(law())]
    assert fault_of(by_hand(by_slot), [branching()], [LENGTH], shapes(window)) == "node 2 does not see slot 4"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"input_ids": torch.tensor([[50, 51, 53, 52]])}, "node 2 has a wrong token or position"),
        ({"positions": torch.tensor([[5, 6, 7, 7]])}, "node 2 has a wrong token or position"),
        ({"positions": torch.tensor([[5, 6, 6, 8]])}, "node 3 has a wrong token or position"),
        ({"masks": {}}, "a tree with branches has no mask"),
        ({"lengths": (LENGTH + 1,)}, "its rows have wrong lengths or numbers of nodes"),
        ({"num_nodes": (3,)}, "its rows have wrong lengths or numbers of nodes"),
    ],
)
def test_wrong_ids_positions_lengths_and_missing_masks_are_faults(change: dict[str, Any], fault: str) -> None:
    assert fault_of(replace(by_hand(law()), **change), [branching()], [LENGTH], shapes()) == fault


def test_a_right_mask_with_wrong_regions_is_a_fault() -> None:
    mask = by_hand(law()).masks["kind"] == 0
    for spoiled in (None, (3, 1), (3, LENGTH + 1)):
        hidden = torch.zeros(4, LENGTH + 4).masked_fill(~mask[0, 0], -torch.inf)
        if spoiled:
            hidden[spoiled] = 0.0 if hidden[spoiled] else -torch.inf
        region = Region(0, slice(0, 4), slice(0, 0), (slice(0, LENGTH + 4),), hidden)
        layout = replace(by_hand(law()), masks={"kind": with_regions(mask.clone(), [region])})
        found = fault_of(layout, [branching()], [LENGTH], shapes())
        expected = {None: "", (3, 1): "node 3 does not see slot 1", (3, LENGTH + 1): f"node 3 sees slot {LENGTH + 1}"}
        assert found == expected[spoiled]


@pytest.mark.parametrize("compiler", [DenseCompiler(), ExactCompiler()], ids=repr)
@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4"])
def test_a_compiler_with_one_mistake_is_found_by_its_layouts_alone(family: str, compiler: Any) -> None:
    backend = planted.Untested(families.make(*families.TREES[family]), compiler)
    walk(Target(backend, compiler))
    for mistake in planted.mistakes_of(compiler):
        with pytest.raises(WrongLayout, match="Spoiled compiled a wrong layout: node"):
            walk(Target(backend, planted.spoiled(compiler, mistake)))
        assert backend.num_rows == 0, mistake


def test_the_walk_compares_every_kind_of_pass_near_the_start_and_behind_a_long_context() -> None:
    model = families.make(*families.TREES["llama"])
    walked = walk(target_of(model, ExactCompiler()))
    kinds = {found.kind for found in walked.others}
    near = {"a tree of 6 nodes", "a tree of 13 nodes"}
    everywhere = {"a tree in the prompt's last pass", "a ragged batch", "a ragged batch of single tokens"}
    assert kinds - {"a tree of 100 nodes"} == {*near, *everywhere, "a tree of 33 nodes"}
    for kind in kinds:
        places = [found.position for found in walked.others if found.kind == kind]
        assert (min(places) < 12) == (kind in near | everywhere)
        assert (max(places) > 150) == (kind not in near)
    plain = families.plain_logits(model, walked.tokens)
    assert set(walked.plain) == {5, 6, 7, 8, 9, 10, 159, 160}
    for position, logits in walked.plain.items():
        assert torch.allclose(logits, plain[position], atol=1e-4)
    assert walked.result().inexact == ""


@pytest.mark.parametrize("most", [11, 12, 20, 40])
def test_a_model_of_few_positions_is_walked_to_its_end_and_no_further(most: int) -> None:
    model = families.make("GPT2Config", {**families.GPT, "n_positions": most}, spread_over=most)
    walked = walk(target_of(model, DenseCompiler()))
    places = [*walked.plain, *(found.position for found in walked.others)]
    assert len(walked.tokens) == most
    assert max(places) < most
    assert max(places) >= most - 3


def test_what_is_no_number_counts_as_another_bit() -> None:
    walked = walk(Target(ToyBackend.load(ToyModel.random(), DenseCompiler()), DenseCompiler()))
    assert walked.result().noise < 1e-6
    walked.others[3].logits[5] = torch.nan
    assert walked.result().noise == float("inf")


def test_the_text_has_usable_ids_only() -> None:
    target = Target(ToyBackend.load(ToyModel.random(), DenseCompiler()), DenseCompiler())
    walked = walk(target, lambda ids: [token % 2 == 0 for token in ids])
    assert not any(token % 2 for token in walked.tokens)
