"""A pass in pieces has the logits and hidden states of the whole pass, and no piece has more tokens than it may."""

from typing import Any

import pytest
import torch
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.passes import Passes
from specdec_openvino.engine.trial import most_rounded_alike
from specdec_openvino.options import OpenVINOOptions

from specdec import DraftTree
from specdec.backends import Output
from specdec.layout import Layout, Padding
from specdec.masks import ExactCompiler
from specdec.target import Target

MOST = 8


def chain(num_tokens: int, wanted: range) -> DraftTree:
    tree = DraftTree(num_tokens)
    tree.add_chain(0, [(7 * node) % 90 for node in range(1, num_tokens)])
    tree.wanted = wanted
    return tree


def passes(model: Any, most: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Output], list[Layout]]:
    """Run a prompt, and rows of very different lengths together; return the results and what the engine was given."""
    compiler = ExactCompiler()
    backend = OpenVINOBackend.load(model, compiler, OpenVINOOptions())
    backend._filling = Filling(Padding((6, 8), 2), 0, most)
    backend._use(frozenset())
    backend.expect_hidden([1])
    target, given, found = Target(backend, compiler), list[Layout](), list[Output]()
    run = Passes._run
    monkeypatch.setattr(Passes, "_run", lambda self, layout: given.append(layout) or run(self, layout))
    rows = [target.open(64) for _ in range(4)]
    for trees in (
        {rows[1]: chain(21, range(21))},
        *({row: chain(*each) for row, each in zip(rows, lengths, strict=False)} for lengths in ROWS),
    ):
        planned = target.compile(trees, hidden=[1])
        found.append(backend.forward(planned.layout))
        target.commit(planned, {row: range(len(tree)) for row, tree in trees.items()})
    monkeypatch.undo()
    return found, given


ROWS = (
    [(3, range(1)), (2, range(2)), (19, range(18, 19)), (1, range(1))],
    [(2, range(1)), (19, range(19))],  # beside a prompt whose logits are wanted
)


def test_a_pass_in_pieces_is_the_whole_pass(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    whole, given = passes(model, None, monkeypatch)
    assert len(given) == 3
    found, pieces = passes(model, MOST, monkeypatch)
    assert [piece.num_nodes for piece in pieces] == [
        (7,), (7,), (7,), (3, 2), (6,), (6,), (7,), (1,), (2,), (6,), (6,), (7,),
    ]  # fmt: skip
    for piece in pieces:
        assert sum(max(2, each) for each in piece.num_nodes) <= MOST
        assert len(piece.lengths) * len(piece.columns) <= MOST
    for expected, own in zip(whole, found, strict=True):
        assert own.logits.shape == expected.logits.shape
        torch.testing.assert_close(own.logits, expected.logits, rtol=0, atol=1e-5)
        for states, others in zip(own.hidden, expected.hidden, strict=True):
            torch.testing.assert_close(states, others, rtol=0, atol=1e-5)


@pytest.mark.parametrize("most", [8, 16, 64])
def test_the_largest_pass_that_rounds_like_a_small_one_is_found(most: int) -> None:
    class Rounding:
        """Passes whose logits have other bits from a number of tokens on."""

        def run(self, layout: Layout) -> tuple[torch.Tensor, list[torch.Tensor]]:
            (num_tokens,) = layout.num_nodes
            return torch.full((1, num_tokens, 2), float(num_tokens > most)), []

    class Rows:
        def open(self) -> None: ...
        def commit(self, row: int, path: range) -> None: ...

    assert most_rounded_alike(lambda: (Rounding(), Rows()), 90) == most  # type: ignore[arg-type, return-value]
