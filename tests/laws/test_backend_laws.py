"""Every backend that can be made here: a tree equals its paths, and keeping equals starting anew."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import ROOT, DraftTree, ToyModel
from specdec.backends import hf as hf_module
from specdec.backends.base import Backend, OutputRow
from specdec.backends.hf import HFBackend
from specdec.backends.static import StaticBackend
from specdec.backends.toy import ToyBackend
from specdec.masks.dense import DenseCompiler
from specdec.plugins.registry import load_plugins
from specdec.target import Row, Target
from tests import families
from tests.generators import end_of_prompt, open_row, path_to, random_tree

Plain = Callable[[list[int]], torch.Tensor]
compiler = DenseCompiler()


def toy() -> tuple[Backend, Plain]:
    model = ToyModel.random(vocab_size=families.VOCAB, order=4, seed=3)
    return ToyBackend.load(model, compiler), lambda tokens: torch.tensor(model.law(tuple(tokens))).log()


def hf() -> tuple[Backend, Plain]:
    model = families.make(*families.TREES["gemma3"])  # windowed and full layers together
    return HFBackend.load(model, compiler), lambda tokens: families.plain_logits(model, tokens)[-1]


def static() -> tuple[Backend, Plain]:
    model = families.make(*families.TREES["gemma3"])
    return StaticBackend.load(model, compiler), lambda tokens: families.plain_logits(model, tokens)[-1]


MAKERS = {"toy": toy, "hf": hf, "static": static}


def test_every_registered_backend_is_tested_here() -> None:
    own = {plugin.name for plugin in load_plugins().of_kind("backends") if plugin.distribution == "specdec"}
    assert own == set(MAKERS)


@pytest.fixture(scope="module", params=MAKERS)
def driven(request: pytest.FixtureRequest) -> tuple[Target, Plain]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_module, "PREFILL_CHUNK", 8)  # so that short prompts come in several
        backend, plain = MAKERS[request.param]()
    backend.shapes = replace(backend.shapes, chunk=8)
    return Target(backend, compiler), plain


def check(plain: Plain, text: list[int], tree: DraftTree, answers: OutputRow) -> None:
    """Every node's logits are those behind the text along its path."""
    for node in range(len(tree)):
        expected = plain([*text, tree.tokens[ROOT], *tree.path(node)])
        assert torch.allclose(answers.logits(node), expected, atol=1e-5)


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_rows_of_any_lengths_trees_and_paths_stay_apart(
    driven: tuple[Target, Plain], seed: int, lengths: list[int]
) -> None:
    """Passes over all rows and over some, rows that keep nothing, and rows that come and go in any order."""
    target, plain = driven
    rng = np.random.default_rng(seed)
    texts: dict[Row, list[int]] = {}

    def tree(root: int | None = None) -> DraftTree:
        return random_tree(rng, families.VOCAB, int(rng.integers(0, 9)), root)

    def one(rows: Collection[Row]) -> Row:
        return list(rows)[int(rng.integers(len(rows)))]

    def some(rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if rng.random() < 0.7]

    try:
        for length in lengths:
            prompt = rng.integers(1, families.VOCAB, size=length).tolist()
            row, drafted = target.open(capacity=8), tree(prompt.pop())  # too small on purpose: buffers must grow
            planned, answers = end_of_prompt(target, row, prompt, drafted)
            check(plain, prompt, drafted, answers)
            path = path_to(drafted, int(rng.integers(len(drafted))))
            target.keep(planned, {row: path})
            texts[row] = [*prompt, *(drafted.tokens[node] for node in path)]
        for index in range(4):
            chosen = some(texts) if index else list(texts)
            trees = {row: tree() for row in chosen or [one(texts)]}
            planned = target.compile(trees)
            assert planned.layout.first == min(map(list(texts).index, trees))
            answers_of = target.forward(planned)
            for row, drafted in trees.items():
                check(plain, texts[row], drafted, answers_of[row])
            paths = {row: path_to(drafted, int(rng.integers(len(drafted)))) for row, drafted in trees.items()}
            kept = {row: paths[row] for row in some(paths)}
            target.keep(planned, kept)
            for row, path in kept.items():
                texts[row] += [trees[row].tokens[node] for node in path]
            row = one(texts)
            del texts[row][int(rng.integers(len(texts[row]) + 1)) :]
            target.rollback(row, len(texts[row]))
            leaving = one(texts)
            if len(texts) > 1:
                target.release(leaving)
                del texts[leaving]  # those behind it move up, in their order
            assert target.rows == tuple(texts)
            assert target.backend.num_rows == len(texts)
            assert [each.length for each in texts] == list(map(len, texts.values()))
            if rng.random() < 0.5:  # another comes behind them, where one may have been
                text = rng.integers(1, families.VOCAB, size=int(rng.integers(1, 20))).tolist()
                texts[open_row(target, text)] = text
    finally:
        for row in target.rows:
            target.release(row)
    assert target.backend.num_rows == 0


@pytest.mark.parametrize("left_out", range(3))
def test_a_pass_over_some_rows_leaves_the_others_as_they_were(driven: tuple[Target, Plain], left_out: int) -> None:
    target, plain = driven
    texts = [list(range(1, 12)), [5, 9, 2], list(range(30, 48))]
    rows = [open_row(target, text) for text in texts]
    others = [number for number in range(3) if number != left_out]
    trees = {rows[number]: random_tree(np.random.default_rng(number), families.VOCAB, 6) for number in others}
    planned = target.compile(trees)
    answers = target.forward(planned)
    assert set(answers) == set(trees)
    assert (planned.layout.first, len(planned.rows)) == {0: (1, 2), 1: (0, 3), 2: (0, 2)}[left_out]
    target.keep(planned, {row: path_to(tree, 4) for row, tree in trees.items()})
    for number in others:
        check(plain, texts[number], trees[rows[number]], answers[rows[number]])
        texts[number] += [trees[rows[number]].tokens[node] for node in path_to(trees[rows[number]], 4)]
    assert [row.length for row in rows] == list(map(len, texts))
    after = {row: random_tree(np.random.default_rng(9), families.VOCAB, 5) for row in rows}
    answers = target.forward(target.compile(after))
    for row, text in zip(rows, texts, strict=True):
        check(plain, text, after[row], answers[row])
        target.release(row)


@pytest.mark.parametrize("leaving", range(3))
def test_rows_behind_one_that_leaves_move_up_in_their_order(driven: tuple[Target, Plain], leaving: int) -> None:
    """By the backend's own numbers."""
    target, plain = driven
    backend, texts = target.backend, [list(range(1, 12)), [5, 9, 2], list(range(30, 48))]
    for text in texts:
        open_row(target, text)
    target.release(target.rows[leaving])
    del texts[leaving]
    trees = [random_tree(np.random.default_rng(number), families.VOCAB, 6) for number in range(2)]
    for first in (0, 1):
        layout = compiler.compile(trees[first:], list(map(len, texts[first:])), backend.shapes)
        output = backend.forward(replace(layout, first=first))
        for number in range(first, 2):
            check(plain, texts[number], trees[number], OutputRow(output, number - first))
        paths = [path_to(tree, 5) for tree in trees[first:]]
        backend.keep(paths)
        for number, path in enumerate(paths, first):
            texts[number] += [trees[number].tokens[node] for node in path]
    output = backend.forward(compiler.compile(trees, list(map(len, texts)), backend.shapes))
    for number in range(2):
        check(plain, texts[number], trees[number], OutputRow(output, number))
    for row in target.rows:
        target.release(row)
