"""Every pair of nodes and what about them, declared together, on any kind of tree and in ragged batches."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Budget, Drafter, DraftTree, Feedback, Generator, Nodes, Proposer, Request, Role, ToyModel, What
from specdec.backends.base import Output
from specdec.backends.toy import ToyBackend
from specdec.layout import Layout
from specdec.strategies.base import Signal, TopK
from tests.generators import path_to, prompts, toy_models
from tests.plain import decode_law
from tests.scripted import Scripted

WHATS = What.ARGMAX, What.DRAW, TopK(1), TopK(3)
EVERY = frozenset(product(Nodes, WHATS))
ROLES = [*map(Role, range(1, 8))]


class Curious(Proposer):
    """Random trees of nodes of any roles; whatever is heard is appended to ``heard``, with the tokens before it."""

    heard: Any  # the test's own list

    def wants(self) -> frozenset[Signal]:
        return EVERY

    def start(self, request: Request) -> Drafter:
        return _Curious(request, self.heard)


class _Curious(Drafter):
    def __init__(self, request: Request, heard: list[tuple[list[int], Feedback]]) -> None:
        super().__init__(request)
        self.heard = heard

    def propose(self, budget: Budget) -> DraftTree:
        self.before, rng = list(self.request.tokens), self.request.rng
        tree = DraftTree(self.request.root)
        for _ in range(min(6, budget.num_nodes)):
            parent = int(rng.integers(len(tree)))
            if tree.depths[parent] < budget.depth:
                tree.add(parent, int(rng.integers(self.request.vocab_size)), ROLES[rng.integers(len(ROLES))])
        return tree

    def observe(self, feedback: Feedback) -> None:
        self.heard.append((self.before, feedback))


def chosen(nodes: Nodes, feedback: Feedback) -> list[int]:
    """The nodes that a declaration names, read off the tree."""
    tree = feedback.tree
    below = range(1, len(tree))
    return {
        Nodes.LAST: [feedback.path[-1]],
        Nodes.PATH: list(feedback.path),
        Nodes.ALL: list(range(len(tree))),
        Nodes.CANDIDATE: [node for node in below if Role.CANDIDATE in tree.roles[node]],
        Nodes.PROBE: [node for node in below if Role.PROBE in tree.roles[node]],
    }[nodes]


def answer(what: Any, model: ToyModel, context: list[int], key: int | None) -> Any:
    """What the model itself says behind some tokens."""
    if isinstance(what, TopK):
        law = np.array(model.law(tuple(context)))
        best = np.argsort(-law, kind="stable")[: what.k]
        return [(int(token), pytest.approx(float(law[token]), rel=1e-5)) for token in best]
    return decode_law(model.law, context, 1, key if what is What.DRAW else None)[0]


def assert_right(feedback: Feedback, before: list[int], model: ToyModel, key: int | None) -> None:
    for nodes, what in EVERY:
        told = feedback.signals[nodes, what]
        assert sorted(told) == sorted(chosen(nodes, feedback)), (nodes, what)
        for node, given_answer in told.items():
            context = before + [feedback.tree.tokens[other] for other in path_to(feedback.tree, node)[1:]]
            expected = answer(what, model, context, key)
            assert (list(given_answer) if isinstance(what, TopK) else given_answer) == expected, (nodes, what, node)


@settings(max_examples=15)
@given(data=st.data(), model=toy_models(), seed=st.integers(0, 2**63 - 1))
def test_every_signal_is_what_the_model_says_there(data: st.DataObject, model: ToyModel, seed: int) -> None:
    batch = data.draw(st.lists(prompts(model.vocab_size), min_size=1, max_size=3))
    for temperature, key in ((0.0, None), (1.0, seed)):
        heard: list[tuple[list[int], Feedback]] = []
        generator = Generator(model, proposer=Curious(heard=heard), max_batch_size=2)
        results = generator.generate(batch, max_new_tokens=10, temperature=temperature, seed=seed)
        assert [list(result.token_ids) for result in results] == [
            decode_law(model.law, prompt, 10, key) for prompt in batch
        ]
        assert heard
        for before, feedback in heard:
            assert_right(feedback, before, model, key)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ([], [0, 1]),
        ([(Nodes.PATH, What.ARGMAX), (Nodes.CANDIDATE, TopK(2))], [0, 1]),
        ([(Nodes.PROBE, What.ARGMAX)], [0, 1, 2]),
        ([(Nodes.ALL, What.DRAW)], [0, 1, 2, 3]),
    ],
)
def test_no_logits_are_computed_that_nobody_wants(declared: list[Signal], expected: list[int]) -> None:
    seen: list[list[int]] = []
    forward = ToyBackend.forward

    def watched(backend: ToyBackend, layout: Layout) -> Output:
        seen.append(list(layout.columns))
        return forward(backend, layout)

    def one_of_each(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        if budget.depth:
            tree.add(0, 1, Role.CANDIDATE)
            tree.add(0, 2, Role.PROBE)
            tree.add(0, 3, Role.SUPPORT)
        return tree

    class Declaring(Scripted):
        def wants(self) -> frozenset[Signal]:
            return frozenset(declared)

    generator = Generator(ToyModel(lambda _: [0.1, 0.2, 0.3, 0.4], 4), proposer=Declaring(script=one_of_each))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ToyBackend, "forward", watched)
        generator.generate([0], max_new_tokens=4)
    assert expected in seen
    assert all(set(columns) <= set(expected) for columns in seen)


def test_of_two_predictions_of_a_node_the_draw_is_told() -> None:
    signals: dict[Signal, dict[int, int]] = {(Nodes.ALL, What.DRAW): {1: 7}, (Nodes.PROBE, What.ARGMAX): {1: 5, 2: 6}}
    for order in (list(signals), list(reversed(list(signals)))):
        feedback = Feedback(DraftTree(0), (0,), (1,), {signal: signals[signal] for signal in order})
        assert feedback.predictions == {1: 7, 2: 6}


class Refusing:
    """A processor that says that it goes by the path alone, and fails on paths that the text never takes."""

    is_path_pure = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids[0, -1] == 3:
            raise ValueError("3 is never written")
        return scores


class Unlikely(Curious):
    """A probe that the model never writes."""

    def start(self, request: Request) -> Drafter:
        return _Unlikely(request, self.heard)


class _Unlikely(_Curious):
    def propose(self, budget: Budget) -> DraftTree:
        self.before, tree = list(self.request.tokens), DraftTree(self.request.root)
        if budget.depth and budget.num_nodes:
            tree.add(0, 3, Role.PROBE)
        return tree


def test_a_processor_that_fails_where_the_text_never_goes_fails_nobody() -> None:
    model = ToyModel(lambda _: [0.5, 0.3, 0.2 - 1e-9, 1e-9], 4)
    heard: list[tuple[list[int], Feedback]] = []
    generator = Generator(model, proposer=Unlikely(heard=heard))
    results = generator.generate([[0, 1], [2]], max_new_tokens=5, logits_processor=[Refusing()])
    assert [result.token_ids for result in results] == [(0,) * 5] * 2
    assert heard
    assert all(feedback.signals[Nodes.PROBE, What.DRAW] == {} for _, feedback in heard)
    assert all(feedback.signals[Nodes.PROBE, What.ARGMAX] == {1: 0} for _, feedback in heard)
