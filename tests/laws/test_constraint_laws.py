"""Masks at the nodes of drafts: with any strategy and rule, the text is plain decoding's under the same masks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Generator, RequestError, ToyModel
from specdec.constraints import Vocabulary
from specdec.settings import Settings
from specdec.testing import (
    EXACT,
    Shape,
    TableConstraint,
    TableDistribution,
    check_constraint,
    check_verifier,
    distributions,
    plain_distribution,
    shapes,
    total_variation,
)
from tests.support.examples import examples
from tests.support.generators import REGISTRY, VERIFIERS, proposer_of
from tests.support.plain import keyed_gumbel

VOCAB, END = 6, 5
STRATEGIES = ["auto", "grammar", "jacobi:n=4", "lookahead:N=3,W=3,G=3", "prompt_lookup:num_matches=2", "draft_model"]


def masked(p: TableDistribution, table: TableConstraint, context: tuple[int, ...]) -> TableDistribution:
    """A law under a table's masks, computed by the definition: what is refused has probability 0."""

    def law(path: tuple[int, ...]) -> list[float]:
        state = table.start(Vocabulary(None, p.vocab_size))
        for token in path[len(context) :]:
            state = state.advance(token)
        weights = np.array(p(path)) * state.mask().numpy()
        return list(weights / weights.sum())

    return law  # type: ignore[return-value]  # called like one


@pytest.mark.parametrize("verifier", VERIFIERS)
@examples(12)
@given(p=distributions(3), q=distributions(3), shape=shapes(max_depth=2, max_draws=3), seed=st.integers(0, 99))
def test_every_lossless_rule_emits_the_masked_law(
    verifier: str, p: TableDistribution, q: TableDistribution, shape: Shape, seed: int
) -> None:
    p, context = TableDistribution(3, p.seed), (1, 2)  # without zeros of the law's own
    table = TableConstraint(seed=seed, prob_of_end=0.0)  # no text ends before its tokens are counted
    constrained = Settings(temperature=1.0, constraint=table)
    check_verifier(REGISTRY.make("verifiers", verifier), p, q, shape, context, constrained)
    # The check compares with decoding under the masks, and that is the law by the definition:
    num_tokens = shape.depth + 1
    decoded = plain_distribution(p, context, num_tokens, constrained)
    assert total_variation(decoded, plain_distribution(masked(p, table, context), context, num_tokens)) <= EXACT


def plain(model: ToyModel, table: TableConstraint, prompt: list[int], seed: int | None, top_k: int | None) -> list[int]:
    """Decoding under the masks by the definition: greedy for None, else draws at temperature 1 of the top-k allowed."""
    tokens, state = list(prompt), table.start(Vocabulary(None, VOCAB))
    while len(tokens) < len(prompt) + 20:
        allowed = state.mask().numpy().copy()
        allowed[END] = False
        if state.is_accepting and not allowed.any():
            break
        allowed[END] = state.is_accepting
        p = np.where(allowed, model.probs(tuple(tokens)), 0.0)
        if top_k is not None:
            p[np.argsort(-p)[top_k:]] = 0.0
        with np.errstate(divide="ignore"):
            scores = p if seed is None else np.log(p / p.sum()) + keyed_gumbel(seed, len(tokens), VOCAB)
        tokens.append(int(np.argmax(scores)))
        if tokens[-1] == END:
            break
        state = state.advance(tokens[-1])
    return tokens[len(prompt) :]


@pytest.mark.parametrize("proposer", STRATEGIES)
@examples(5)
@given(seed=st.integers(0, 999), refusal=st.sampled_from([0.3, 0.8]))
def test_with_every_strategy_the_text_is_plain_decodings_in_ragged_batches(
    proposer: str, seed: int, refusal: float
) -> None:
    model = ToyModel.random(VOCAB, seed=seed, sharpness=3.0)
    prompts = [[1, 2, 3, 1, 2], [4], [2, 0, 2]]
    tables = [TableConstraint(seed=seed + number, prob_of_refusal=refusal) for number in range(3)]
    generator = Generator(model, proposer=proposer_of(proposer, VOCAB), max_batch_size=2)
    for temperature, key, top_k in ((0.0, None, None), (1.0, seed, None), (1.0, seed, 2)):
        results = generator.generate(
            prompts,
            each=[{"constraint": table} for table in tables],
            max_new_tokens=20,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            eos_token_id=END,
        )
        expected = [plain(model, table, prompt, key, top_k) for table, prompt in zip(tables, prompts, strict=True)]
        assert [list(result.token_ids) for result in results] == expected


def test_a_table_keeps_a_constraints_laws() -> None:
    check_constraint(TableConstraint(seed=3), None, VOCAB)


def test_texts_that_end_early_end_where_the_constraint_accepts() -> None:
    """The cases above reach ends: by an end of text, and where no other token is allowed."""
    model = ToyModel.random(VOCAB, seed=1, sharpness=0.1)
    tables = [TableConstraint(seed=seed, prob_of_refusal=0.8) for seed in range(20)]
    each = [{"constraint": table} for table in tables]
    results = Generator(model).generate(
        [[1]] * 20, each=each, max_new_tokens=20, eos_token_id=END, temperature=1.0, seed=1
    )
    ended = [result.token_ids for result in results if result.finish_reason == "stop"]
    assert any(tokens[-1] == END for tokens in ended)


def test_processors_that_leave_nothing_of_what_is_allowed_are_an_error_that_names_the_constraint() -> None:
    table = TableConstraint(seed=1, prob_of_refusal=1.0, prob_of_end=0.0)
    with pytest.raises(Exception, match="the constraint and the logits processors leave no token possible"):
        Generator(ToyModel.random(VOCAB)).generate([1], constraint=table, suppress_tokens=[0], max_new_tokens=3)


def test_settings_that_contradict_a_constraint_are_refused() -> None:
    generator = Generator(ToyModel.random(VOCAB))
    with pytest.raises(RequestError, match="min_new_tokens and constraint both decide where the text may begin or end"):
        generator.generate([1], constraint=TableConstraint(seed=1), min_new_tokens=2)
    with pytest.raises(RequestError, match=r"constraint=\{'type': 'object'\}: give a constraint of specdec"):
        generator.generate([1], constraint={"type": "object"})  # type: ignore[call-overload]
    with pytest.raises(RequestError, match=r"response_format.*use constraint=JsonSchema"):
        generator.generate([1], response_format={"type": "json_object"})  # type: ignore[call-overload]
