"""Every registered strategy: legal trees, the same tree for the same history, and never another text."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, DraftTree, Feedback, Generator, ToyModel
from specdec.decoding import TokenView
from specdec.decoding.signals import select
from specdec.plugins import load_plugins
from specdec.sampling import Randomness
from specdec.strategies import Answers, Drafter, Request, TopLogits
from specdec.testing import check_proposer, toy_host
from tests.support.examples import examples
from tests.support.generators import PROPOSERS, budgets, prompts, proposer_of, toy_models
from tests.support.plain import decode_law


@pytest.mark.parametrize("proposer", PROPOSERS)
@examples(2)
@given(data=st.data(), model=toy_models(), seed=st.integers(0, 2**63 - 1))
def test_the_text_is_plain_decodings_at_any_temperature_alone_and_in_a_batch(
    proposer: str, data: st.DataObject, model: ToyModel, seed: int
) -> None:
    batch = data.draw(st.lists(prompts(model.vocab_size), min_size=1, max_size=4))
    generator = Generator(model, proposer=proposer_of(proposer, model.vocab_size), max_batch_size=3)
    for temperature, key in ((0.0, None), (1.0, seed)):
        results = generator.generate(batch, max_new_tokens=16, temperature=temperature, seed=seed)
        expected = [decode_law(model.probs, prompt, 16, key) for prompt in batch]
        assert [list(result.token_ids) for result in results] == expected
        alone = generator.generate(batch[0], max_new_tokens=16, temperature=temperature, seed=seed)
        assert list(alone.token_ids) == expected[0]
        assert sum(alone.stats.accepted_lengths) == 16


def said(what: object, token: int) -> Any:
    """The answer of a model that always says the token's successor."""
    successor = (token + 1) % 7
    return ((successor, token)[: what.k], (1.0, 0.0)[: what.k]) if isinstance(what, TopLogits) else successor


def answers_at(what: object, nodes: Sequence[int], tree: DraftTree) -> dict[int, Any]:
    return {node: said(what, tree.tokens[node]) for node in nodes}


def drafted(proposer: str, prompt: list[int], budget: Budget, num_steps: int) -> list[tuple[Any, ...]]:
    """The trees of some steps in which the model always says the root's successor, modulo the vocabulary of 7."""
    engine_of = proposer_of(proposer, 7)
    tokens = list(prompt)
    rng, reference = Randomness(5).stream("law"), (3, 4, 1, 5, 6, 0, 0, 2, 3)
    request = Request(TokenView(tokens), len(prompt), 7, frozenset({6}), 0.0, rng, reference=reference)
    drafter: Drafter = engine_of.bind(toy_host(7, reads_q=False)).start(request)
    shapes = []
    for _ in range(num_steps):
        tree: DraftTree = drafter.propose(budget)
        tree.check(tokens[-1], 7, budget, proposer)
        shapes.append((tuple(tree.tokens), tuple(tree.parents), tuple(tree.roles)))
        node, path = 0, [0]
        while (child := tree.child(node, (tree.tokens[node] + 1) % 7)) is not None:
            node = child
            path.append(node)
        emitted = tuple((tree.tokens[node] + 1) % 7 for node in path)
        tokens += emitted
        signals = {
            signal: Answers(partial(answers_at, signal[1], select(signal[0], tree, path), tree))
            for signal in engine_of.wants()
        }
        feedback = Feedback(tree, tuple(path), emitted, signals)
        drafter.receive(feedback)
        drafter.observe(feedback)
    drafter.stop()
    return shapes


@pytest.mark.parametrize("proposer", PROPOSERS)
@examples(25)
@given(prompt=prompts(7), budget=budgets)
def test_trees_are_legal_within_any_budget_and_repeat_for_the_same_history(
    proposer: str, prompt: list[int], budget: Budget
) -> None:
    assert drafted(proposer, prompt, budget, 6) == drafted(proposer, prompt, budget, 6)


# With other options the law above is checked by day: the same, written without specdec.
@pytest.mark.parametrize(
    "proposer",
    [
        name if ":" not in name and "+" not in name else pytest.param(name, marks=pytest.mark.nightly)
        for name in PROPOSERS
    ],
)
def test_every_strategy_passes_the_check_that_plug_in_authors_call(proposer: str) -> None:
    model = ToyModel.random(vocab_size=5, order=2, seed=1)
    check_proposer(proposer_of(proposer, 5), model, [[0, 1], [3], [2, 2, 1, 2]], seed=1)


def test_the_built_in_strategies_that_learn_across_requests_say_so() -> None:
    offered = [plugin for plugin in load_plugins().of_kind("proposers") if plugin.distribution == "specdec"]
    assert [plugin.name for plugin in offered if plugin.cls.learns_across_requests] == [
        "auto",
        "suffix",
        "token_recycling",
        "grammar",
        "reference",
    ]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "proposer",
    [name for name in PROPOSERS if name not in ("autoregressive", "grammar", "reference", "lookahead:N=3,W=4,G=0")],
)
def test_something_is_accepted_where_text_repeats(proposer: str) -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [0.01, 0.01, 0.97, 0.01]  # the same token again and again: all that a plain Jacobi iteration can foresee

    result = Generator(ToyModel(law, 4), proposer=proposer_of(proposer, 4, law)).generate(
        [0, 1, 2, 2, 2, 2], max_new_tokens=80
    )
    assert result.stats.tokens_per_step > 1.3
