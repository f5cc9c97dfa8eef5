"""Every pair of nodes and what about them, declared together, on any kind of tree and in ragged batches."""

import copy
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, Drafter, DraftTree, Feedback, Generator, Nodes, Proposer, Request, Role, ToyModel, What
from specdec.backends import Output, ToyBackend
from specdec.layout import Layout
from specdec.strategies import Answers, Hidden, Signal, TopK, TopLogits
from specdec.tree import merge
from tests.support.examples import examples
from tests.support.generators import path_to, prompts, toy_models
from tests.support.plain import decode_law
from tests.support.scripted import Scripted

WHATS = What.ARGMAX, What.DRAW, TopK(1), TopK(3), TopLogits(2), Hidden((-1,)), Hidden((0, 2))
EVERY = frozenset(product(Nodes, WHATS))
ROLES = [*map(Role, range(1, 8))]


@dataclass
class Heard:
    """What drafters were told.

    Attributes:
        steps: the tokens before each step, and its feedback.
        parts: of prompts: the request, the positions of the part that was read, and the answers about it by signal.
    """

    steps: list[tuple[list[int], Feedback]] = field(default_factory=list)
    parts: list[tuple[Request, range, Mapping[Signal, Answers]]] = field(default_factory=list)


class Curious(Proposer):
    """Random trees of nodes of any roles."""

    heard: Any  # the test's own

    def wants(self) -> frozenset[Signal]:
        return EVERY

    def start(self, request: Request) -> Drafter:
        return _Curious(request, self.heard)


class _Curious(Drafter):
    def __init__(self, request: Request, heard: Heard) -> None:
        super().__init__(request)
        self.heard = heard
        self.num_read = request.num_reused

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        self.heard.parts.append((self.request, range(self.num_read, num_tokens), signals))
        self.num_read = num_tokens

    def propose(self, budget: Budget) -> DraftTree:
        self.before, rng = list(self.request.tokens), self.request.rng
        tree = DraftTree(self.request.root)
        for _ in range(min(6, budget.num_nodes)):
            parent = int(rng.integers(len(tree)))
            if tree.depths[parent] < budget.depth:
                tree.add(parent, int(rng.integers(self.request.vocab_size)), ROLES[rng.integers(len(ROLES))])
        return tree

    def observe(self, feedback: Feedback) -> None:
        self.heard.steps.append((self.before, feedback))


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
    """The model's own answer behind some tokens."""
    if isinstance(what, Hidden):  # the toy's states are the layer, the token and its position
        return [[layer, context[-1], len(context) - 1] for layer in what.layers]
    if isinstance(what, TopK):
        law = np.array(model.probs(tuple(context)))
        best = np.argsort(-law, kind="stable")[: what.k]
        return [tuple(best.tolist()), pytest.approx(tuple(law[best].tolist()), rel=1e-5)]
    if isinstance(what, TopLogits):
        logits = np.log(np.array(model.probs(tuple(context))))
        best = np.argsort(-logits, kind="stable")[: what.k]
        return [tuple(best.tolist()), pytest.approx(tuple(logits[best].tolist()), rel=1e-4, abs=1e-5)]
    return decode_law(model.probs, context, 1, key if what is What.DRAW else None)[0]


def plain(given_answer: Any) -> Any:
    """An answer as lists and numbers."""
    if isinstance(given_answer, torch.Tensor):
        return given_answer.tolist()
    return list(given_answer) if isinstance(given_answer, tuple) else given_answer


def assert_right(feedback: Feedback, before: list[int], model: ToyModel, key: int | None) -> None:
    assert feedback.signals.keys() == {pair for pair in EVERY if pair[0] is not Nodes.PROMPT}
    for (nodes, what), told in feedback.signals.items():
        assert list(told) == chosen(nodes, feedback), (nodes, what)
        for node in told:
            path = before + [feedback.tree.tokens[other] for other in path_to(feedback.tree, node)[1:]]
            assert plain(told[node]) == answer(what, model, path, key), (nodes, what, node)
        assert_tensor(told, what)


def assert_tensor(told: Answers, what: Any) -> None:
    """All hidden states in one tensor, and nothing else."""
    if not isinstance(what, Hidden):
        with pytest.raises(TypeError, match="Hidden"):
            told.tensor()
    else:
        assert told.tensor().shape == (len(told), len(what.layers), 3)
        assert told.tensor().tolist() == [plain(told[node]) for node in told]


def assert_prompts_right(heard: Heard, model: ToyModel, key: int | None) -> None:
    """Every position of every prompt but its last, part by part in the order of the text, each once."""
    told: dict[int, list[int]] = {}
    for request, positions, signals in heard.parts:
        assert signals.keys() == {pair for pair in EVERY if pair[0] is Nodes.PROMPT}
        prompt = request.tokens[: request.prompt_length]
        told.setdefault(id(request), []).extend(positions)
        for (_, what), answers in signals.items():
            assert list(answers) == list(positions)
            for position in answers:
                assert plain(answers[position]) == answer(what, model, prompt[: position + 1], key), (what, position)
            assert_tensor(answers, what)
    for request, _, _ in heard.parts:
        assert told[id(request)] == [*range(request.prompt_length - 1)]


@examples(15)
@given(data=st.data(), model=toy_models(), seed=st.integers(0, 2**63 - 1), chunk=st.sampled_from([2, 3, 256]))
def test_every_signal_is_what_the_model_says_there(data: st.DataObject, model: ToyModel, seed: int, chunk: int) -> None:
    batch = data.draw(st.lists(prompts(model.vocab_size), min_size=1, max_size=3))
    for temperature, key in ((0.0, None), (1.0, seed)):
        heard = Heard()
        generator = Generator(model, proposer=Curious(heard=heard), max_batch_size=1 if key is None else 2)
        backend = generator._binding.target.backend
        backend.shapes = replace(backend.shapes, chunk=chunk)
        results = generator.generate(batch, max_new_tokens=10, temperature=temperature, seed=seed)
        assert [list(result.token_ids) for result in results] == [
            decode_law(model.probs, prompt, 10, key) for prompt in batch
        ]
        assert heard.steps
        for before, feedback in heard.steps:
            assert_right(feedback, before, model, key)
        assert_prompts_right(heard, model, key)


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
    signals: dict[Signal, Answers] = {
        (Nodes.ALL, What.DRAW): Answers(lambda: {1: 7}),
        (Nodes.PROBE, What.ARGMAX): Answers(lambda: {1: 5, 2: 6}),
    }
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
    heard = Heard()
    generator = Generator(model, proposer=Unlikely(heard=heard))
    results = generator.generate([[0, 1], [2]], max_new_tokens=5, logits_processor=[Refusing()])
    assert [result.token_ids for result in results] == [(0,) * 5] * 2
    assert heard.steps
    assert all(feedback.signals[Nodes.PROBE, What.DRAW] == {} for _, feedback in heard.steps)
    assert all(feedback.signals[Nodes.PROBE, What.ARGMAX] == {1: 0} for _, feedback in heard.steps)


class Both(Proposer):
    """Two strategies' trees as one; each must hear what it would have heard alone, in its own numbering."""

    heard: Any  # the test's own list of (tokens before, feedback about the whole, the two about its parts)

    def wants(self) -> frozenset[Signal]:
        return EVERY

    def start(self, request: Request) -> Drafter:
        return _Both(request, self.heard)


class _Both(Drafter):
    def __init__(self, request: Request, heard: list[tuple[list[int], Feedback, list[Feedback]]]) -> None:
        super().__init__(request)
        self.heard = heard
        self.inner = [_Curious(request, Heard()), _Curious(request, Heard())]

    def propose(self, budget: Budget) -> DraftTree:
        self.before = list(self.request.tokens)
        self.trees = [each.propose(budget) for each in self.inner]
        merged = merge(self.trees)
        size = int(self.request.rng.integers(1, len(merged) + 1))  # and cut to a size, as a price may ask
        return merged.subtree(range(min(size, budget.num_nodes + 1)))

    def observe(self, feedback: Feedback) -> None:
        self.heard.append((self.before, feedback, [feedback.about(tree) for tree in self.trees]))


@examples(15)
@given(data=st.data(), model=toy_models(), seed=st.integers(0, 2**63 - 1), takes_trees=st.booleans())
def test_a_tree_that_became_part_of_another_hears_about_its_own_nodes(
    data: st.DataObject, model: ToyModel, seed: int, takes_trees: bool
) -> None:
    batch = data.draw(st.lists(prompts(model.vocab_size), min_size=1, max_size=3))
    heard: list[tuple[list[int], Feedback, list[Feedback]]] = []
    generator = Generator(model, proposer=Both(heard=heard))
    with pytest.MonkeyPatch.context() as patched:
        if not takes_trees:  # each tree is cut to its longest chain besides
            patched.setattr(DraftTree, "longest_chain", DraftTree.longest_chain)
            shapes = generator._binding.target.backend.shapes
            generator._binding.target.backend.shapes = replace(shapes, takes_trees=False)
        results = generator.generate(batch, max_new_tokens=10, temperature=1.0, seed=seed)
    assert [list(result.token_ids) for result in results] == [
        decode_law(model.probs, prompt, 10, seed) for prompt in batch
    ]
    for before, whole, parts in heard:
        for part in parts:
            path = [before[-1], *part.tokens]
            assert [part.tree.tokens[node] for node in part.path] == path[: len(part.path)]
            assert part.tokens == whole.tokens
            assert list(part.signals[Nodes.PATH, Hidden((0, 2))]) == list(part.path)
            for what in WHATS:
                assert_tensor(part.signals[Nodes.PATH, what], what)
            told = part.signals[Nodes.ALL, TopK(3)]
            assert set(told) <= set(range(len(part.tree)))
            assert 0 in told
            for node, given_answer in told.items():
                context = before + [part.tree.tokens[other] for other in path_to(part.tree, node)[1:]]
                assert plain(given_answer) == answer(TopK(3), model, context, seed)
                states = part.signals[Nodes.ALL, Hidden((0, 2))][node]
                assert plain(states) == answer(Hidden((0, 2)), model, context, seed)


def test_feedback_about_a_foreign_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="wasn't made from"):
        Feedback(DraftTree(0), (0,), (1,)).about(DraftTree(0))


def test_hidden_states_are_those_of_the_model(built_in: tuple[Any, Any]) -> None:
    model, _ = built_in
    reference, heard = copy.deepcopy(model), Heard()

    class Watching(Curious):
        def wants(self) -> frozenset[Signal]:
            return frozenset({(Nodes.ALL, Hidden((0, -1))), (Nodes.PROMPT, Hidden((-1,)))})

    def num_hooks() -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())

    before_all = num_hooks()  # transformers' own, if another test has asked the model for hidden states
    generator = Generator(model, proposer=Watching(heard=heard))
    prompt = list(range(40, 60))
    generator.generate(prompt, max_new_tokens=6)
    assert num_hooks() == before_all
    for before, feedback in heard.steps:
        for node, given_answer in feedback.signals[Nodes.ALL, Hidden((0, -1))].items():
            path = before + [feedback.tree.tokens[other] for other in path_to(feedback.tree, node)[1:]]
            with torch.no_grad():
                states = reference(torch.tensor([path]), output_hidden_states=True).hidden_states
            expected = torch.stack([states[0][0, -1], states[-1][0, -1]])
            assert torch.allclose(given_answer, expected, atol=1e-4)
    ((_, positions, told),) = heard.parts
    assert positions == range(len(prompt) - 1)
    with torch.no_grad():
        states = reference(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]
    assert torch.allclose(told[Nodes.PROMPT, Hidden((-1,))].tensor()[:, 0], states[:-1], atol=1e-4)


def test_no_answer_about_a_tree_is_copied_from_the_device_before_it_is_asked_for() -> None:
    asked: list[int] = []
    top = Output.top

    def watched(output: Output, k: int) -> Any:
        asked.append(k)
        return top(output, k)

    class Asking(Curious):
        asks: bool

        def start(self, request: Request) -> Drafter:
            return _Asking(request, self.asks)

    class _Asking(_Curious):
        def __init__(self, request: Request, asks: bool) -> None:
            super().__init__(request, Heard())
            self.asks = asks

        def observe(self, feedback: Feedback) -> None:
            if self.asks:
                assert feedback.signals[Nodes.ALL, TopK(3)][0]

    for asks in (False, True):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Output, "top", watched)
            Generator(ToyModel.random(), proposer=Asking(heard=Heard(), asks=asks)).generate([0], max_new_tokens=4)
        assert bool(asked) == asks


@pytest.mark.parametrize("what", [What.ARGMAX, What.DRAW, TopK(3), Hidden((-1,))], ids=str)
@pytest.mark.parametrize("beside", [None, What.ARGMAX], ids=str)
def test_a_prompts_logits_are_let_go_chunk_by_chunk(what: Any, beside: Any) -> None:
    model = ToyModel.random(vocab_size=5)
    held: list[weakref.ref[torch.Tensor]] = []
    told = dict[int, Any]()

    class Watching(Curious):
        def wants(self) -> frozenset[Signal]:
            return frozenset((Nodes.PROMPT, each) for each in (what, beside) if each is not None)

        def start(self, request: Request) -> Drafter:
            return _Reading(request, Heard())

    class _Reading(_Curious):
        def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
            told.update({position: plain(given) for position, given in signals[Nodes.PROMPT, what].items()})

    generator = Generator(model, proposer=Watching(heard=Heard()))
    backend = generator._binding.target.backend
    backend.shapes, forward = replace(backend.shapes, chunk=4), backend.forward

    def noting(layout: Layout) -> Output:
        output = forward(layout)
        held.append(weakref.ref(output.logits))
        return output

    backend.forward = noting  # type: ignore[method-assign]
    alive: list[int] = []
    prompt = [index % 5 for index in range(18)]
    generator.generate(
        prompt,
        max_new_tokens=9,
        temperature=1.0,
        seed=3,
        on_step=lambda _: alive.append(sum(logits() is not None for logits in held)),
    )
    assert alive[:4] == [0] * 4
    assert sorted(told) == list(range(len(prompt) - 1))
    for position, given_answer in told.items():
        assert given_answer == answer(what, model, prompt[: position + 1], 3)
