"""The picture of a mask against matrices written by hand."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from specdec import DraftTree, Generator, RequestError, Role, ToyModel
from specdec.apps.pictures.mask import MaskPicture, draw, row_labels, save, telling_step, visibility
from specdec.apps.pictures.trace import Recorder, Trace, TraceStep
from specdec.layout import Shapes, Window
from tests.support.scripted import Scripted

FULL = {"full_attention": None}


def shapes(attention: Any = FULL, takes_trees: bool = True) -> Shapes:
    return Shapes(9, None, takes_trees, attention, torch.float32, torch.device("cpu"))


def rows(*lines: str) -> Any:
    return np.array([[mark == "x" for mark in line.replace(" ", "")] for line in lines])


def small_tree() -> DraftTree:
    tree = DraftTree(0)
    tree.add_chain(0, [1, 2], Role.SUPPORT)
    tree.add(0, 3)
    tree.add(1, 4, Role.PROBE)
    return tree


def trace_of(tree: DraftTree, labels: tuple[str, ...] | None = None, path: tuple[int, ...] = (0,)) -> Trace:
    labels = labels or tuple(f" t{token}" for token in tree.tokens)
    step = TraceStep(tree, labels, 2, path, (5,), ("5",), "5")
    result = Generator(ToyModel.random()).generate([1], max_new_tokens=1)
    return Trace("by hand", "a b c", (step,), result)


def test_a_node_sees_the_prefix_its_ancestors_and_itself() -> None:
    seen = visibility(small_tree(), 2, shapes(), "full_attention")
    assert np.array_equal(seen, rows("xx x....", "xx xx...", "xx xxx..", "xx x..x.", "xx xx..x"))


def test_a_sliding_window_hides_the_older_part_of_the_prefix() -> None:
    attention = {"sliding_attention": Window("sliding", 3)}
    picture = MaskPicture.of(trace_of(small_tree()), 1, shapes(attention))
    assert np.array_equal(picture.prefix, [1, 0.5, 0, 0.5, 0])  # the root is at position 2
    assert np.array_equal(picture.visible, rows("x....", "xx...", "xxx..", "x..x.", "xx..x"))
    assert picture.layers == "sliding_attention"


def test_of_several_kinds_of_layers_the_one_that_sees_all_is_drawn() -> None:
    attention = {"sliding_attention": Window("sliding", 1), **FULL}
    picture = MaskPicture.of(trace_of(small_tree()), 1, shapes(attention))
    assert picture.prefix.tolist() == [1] * 5
    assert picture.layers == "full_attention"


@pytest.mark.parametrize(("drafted", "takes_trees"), [((), True), ((1, 2), False)])
def test_where_the_models_own_mask_serves_it_is_causal(drafted: tuple[int, ...], takes_trees: bool) -> None:
    chain = DraftTree(0)
    chain.add_chain(0, drafted)
    seen = visibility(chain, 2, shapes(takes_trees=takes_trees), "full_attention")
    assert np.array_equal(seen, rows("xx x..", "xx xx.", "xx xxx")[: len(chain), : 2 + len(chain)])


def test_a_prompt_of_one_token_has_no_prefix() -> None:
    trace = Recorder(ToyModel.random(), None, Scripted(script=lambda *_: small_tree())).trace([0], max_new_tokens=1)
    picture = MaskPicture.of(trace, 1, shapes())
    assert picture.prefix.tolist() == [0] * 5


@pytest.mark.parametrize("number", [0, 2])
def test_a_step_that_there_was_not_is_refused_with_the_number_of_steps(number: int) -> None:
    with pytest.raises(RequestError, match=f"there is no step {number}: decoding took 1 step, "):
        MaskPicture.of(trace_of(small_tree()), number, shapes())


def test_the_telling_step_of_lookahead_has_every_role_and_accepts_drafts(built_in: tuple[Any, Any]) -> None:
    trace = Recorder(*built_in, "lookahead:N=4,W=5,G=2").trace("1. Multiply 651 by", max_new_tokens=32, seed=0)
    number = telling_step(trace)
    step = trace.steps[number - 1]
    assert number >= 8
    assert {Role.CANDIDATE, Role.PROBE, Role.SUPPORT} <= set(step.tree.roles)
    assert step.num_accepted >= 1


def test_every_trace_has_a_telling_step() -> None:
    for max_new_tokens in (1, 7, 8, 9):
        trace = Recorder(ToyModel.random(), None, "autoregressive").trace([1], max_new_tokens=max_new_tokens)
        assert telling_step(trace) == min(8, max_new_tokens)


def test_the_figure_has_a_coloured_cell_for_each_entry_that_is_seen() -> None:
    picture = MaskPicture.of(trace_of(small_tree(), path=(0, 3)), 1, shapes())
    figure = draw(picture)
    (axes,) = figure.axes
    nodes, prefix = (np.asarray(mesh.get_array()) for mesh in axes.collections)
    assert np.array_equal(nodes > 0, picture.visible)
    assert prefix.ravel().tolist() == [1] * 5
    codes = [set(row[row > 0]) for row in nodes]
    assert codes[1] == codes[2] != codes[3]  # support, support, candidate
    texts = [text.get_text() for text in figure.texts]
    assert texts == ["Attention mask of step 1 of 1, by hand", "5 nodes, root at position 2"]
    (legend,) = figure.legends
    meanings = [text.get_text().partition(":")[0] for text in legend.get_texts()]
    assert meanings == ["prefix", "root", "candidate", "probe", "support", "✓ bold"]


def test_rows_are_labelled_with_mark_token_roles_depth_and_number() -> None:
    labels = ("x", "東京", " a rather long token", "\n", "$x^$")
    picture = MaskPicture.of(trace_of(small_tree(), labels, path=(0, 3)), 1, shapes())
    assert [label.split() for label in row_labels(picture)] == [
        ["'x'", "root", "+0", "0"],
        ["'\\u6771\\u4eac'", "support", "+1", "1"],
        ["'", "a", "rather", "lo…", "support", "+2", "2"],
        ["✓", "'\\n'", "candidate", "+1", "3"],
        ["'$x^$'", "probe", "+2", "4"],
    ]


def test_a_figure_is_saved_by_its_suffix(tmp_path: Path) -> None:
    labels = ("$x^$", "東京", "<&>", "�", "\x00")  # broken mathematics, no glyph, markup
    picture = MaskPicture.of(trace_of(small_tree(), labels), 1, shapes())
    for name in ("mask.svg", "again.svg", "mask.png"):
        save(picture, tmp_path / name)
    assert ElementTree.parse(tmp_path / "mask.svg").getroot().tag.endswith("}svg")
    assert (tmp_path / "mask.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def test_what_can_not_be_saved_is_refused(tmp_path: Path) -> None:
    picture = MaskPicture.of(trace_of(small_tree()), 1, shapes())
    with pytest.raises(RequestError, match=r"a figure's name ends in \.svg or \.png"):
        save(picture, tmp_path / "mask.pdf")
    with pytest.raises(RequestError, match=r"mask\.svg can't be written: "):
        save(picture, tmp_path / "no" / "mask.svg")
