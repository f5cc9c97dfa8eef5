"""Every lossless rule, enumerated exactly: the law of what is emitted, and how much of the draft it accepts."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import ROOT, DraftTree
from specdec.backends import TokenDistribution
from specdec.sampling import RandomSource
from specdec.settings import Settings
from specdec.testing import (
    EXACT,
    Shape,
    TableDistribution,
    check_verifier,
    distributions,
    draw_tree,
    emitted_distribution,
    expected_length,
    outcomes,
    plain_distribution,
    shapes,
    target_of,
    total_variation,
)
from specdec.verifiers import Verifier
from tests.support.examples import examples
from tests.support.generators import REGISTRY, VERIFIERS

LEAF = Shape()
CONTEXT = (1, 2)
SAMPLED = Settings(temperature=1.0)
vocab3 = distributions(3)


def rule(name: str) -> Verifier:
    made: Verifier = REGISTRY.make("verifiers", name)
    return made


def chain(depth: int) -> Shape:
    return LEAF if depth == 0 else Shape((("sampled", chain(depth - 1)),))


@pytest.mark.parametrize("verifier", VERIFIERS)
@examples(25)
@given(p=vocab3, q=vocab3, shape=shapes(), is_same=st.integers(0, 5))
def test_what_is_emitted_has_the_targets_law(
    verifier: str, p: TableDistribution, q: TableDistribution, shape: Shape, is_same: int
) -> None:
    check_verifier(rule(verifier), p, p if is_same == 0 else q, shape, CONTEXT)


@pytest.mark.parametrize("verifier", VERIFIERS)
@examples(15)
@given(
    p=vocab3,
    q=vocab3,
    shape=shapes(max_draws=3),
    warped=st.sampled_from(
        [
            {"temperature": 0.0},
            {"temperature": 0.7, "top_k": 2},
            {"temperature": 1.0, "top_p": 0.6},
            {"temperature": 1.5, "repetition_penalty": 1.8},
            {"temperature": 1.0, "no_repeat_ngram_size": 2},
        ]
    ),
)
def test_it_has_under_every_setting(
    verifier: str, p: TableDistribution, q: TableDistribution, shape: Shape, warped: dict[str, float]
) -> None:
    # No token may be impossible here, or settings could leave none.
    p = TableDistribution(3, p.seed)
    if "no_repeat_ngram_size" in warped and shape.depth > 2:
        return  # after a few tokens of three no new pair is left
    check_verifier(rule(verifier), p, q, shape, CONTEXT, Settings(**warped))


@pytest.mark.parametrize("verifier", VERIFIERS)
@examples(3)
@given(p=vocab3, q=vocab3)
def test_drafts_that_learn_from_rejected_draws_change_nothing(
    verifier: str, p: TokenDistribution, q: TokenDistribution
) -> None:
    made, num_tokens = rule(verifier), 3  # at least two steps after a rejection
    p, q = cache(p), cache(q)

    def step(tokens: tuple[int, ...], rejected: int) -> dict[tuple[tuple[int, ...], int], float]:
        """The distribution of the text after a step, and of what the next draft has learnt from this one."""

        def drafter(path: tuple[int, ...]) -> Sequence[float]:
            return q((*path, rejected))

        def run(chances: RandomSource) -> tuple[tuple[int, ...], int]:
            tree = draw_tree(tokens, drafter, Shape((("sampled", LEAF), ("sampled", LEAF))), chances)
            verdict = made.verify(tree, target_of(p, tree, tokens, SAMPLED, chances), chances)
            learnt = sum(tree.tokens[node] for node in range(1, len(tree)) if node not in verdict.path)
            return (*tokens, *verdict.tokens)[: len(CONTEXT) + num_tokens], learnt

        return outcomes(run)

    emitted, waiting = dict[tuple[int, ...], float](), {(CONTEXT, 0): 1.0}
    while waiting:
        state = min(waiting, key=lambda state: len(state[0]))  # steps only lengthen it: its probability is complete
        prob = waiting.pop(state)
        for (tokens, learnt), prob_of_step in step(*state).items():
            if len(tokens) == len(CONTEXT) + num_tokens:
                text = tokens[len(CONTEXT) :]
                emitted[text] = emitted.get(text, 0.0) + prob * prob_of_step
            else:
                waiting[tokens, learnt] = waiting.get((tokens, learnt), 0.0) + prob * prob_of_step
    assert total_variation(emitted, plain_distribution(p, CONTEXT, num_tokens)) <= EXACT


@given(p=vocab3, q=vocab3, depth=st.integers(1, 3))
@examples(40)
def test_block_verification_never_accepts_less_of_a_chain_and_accepts_what_its_paper_says(
    p: TokenDistribution, q: TokenDistribution, depth: int
) -> None:
    p, q = cache(p), cache(q)
    lengths = {
        name: expected_length(rule(name), p, lambda chances: draw_tree(CONTEXT, q, chain(depth), chances), CONTEXT)
        for name in ("rejection", "traversal")
    }
    assert lengths["traversal"] >= lengths["rejection"] - EXACT

    def accepted(path: tuple[int, ...], m: float) -> float:
        """Sun et al. 2024: the sum over nodes of m(x^i) = min(m(x^(i-1)) p(x_i), q(x^i)), with m of nothing 1."""
        if len(path) == depth:
            return 0.0
        mass = 1.0
        for i, token in enumerate(path):
            mass *= q((*CONTEXT, *path[:i]))[token]
        total = 0.0
        for token in range(3):
            new = min(m * p((*CONTEXT, *path))[token], mass * q((*CONTEXT, *path))[token])
            total += new + accepted((*path, token), new)
        return total

    assert lengths["traversal"] == pytest.approx(1 + accepted((), 1.0), abs=1e-12)


def test_a_tree_where_rejection_accepts_more_than_traversal() -> None:
    def p(context: tuple[int, ...]) -> Sequence[float]:
        return (0.5, 0.5, 0.0) if len(context) == 1 else (1.0, 0.0, 0.0)

    def q(context: tuple[int, ...]) -> Sequence[float]:
        return ((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), p(context))[min(len(context), 3) - 1]

    one = Shape((("sampled", LEAF),))
    shape = Shape((("sampled", Shape((("sampled", LEAF), ("sampled", one)), replaces=False)),))

    def num_accepted(name: str) -> float:
        return expected_length(rule(name), p, lambda chances: draw_tree((2,), q, shape, chances), (2,)) - 1

    assert num_accepted("traversal") == pytest.approx(1.0, abs=1e-12)
    assert num_accepted("rejection") == pytest.approx(1.25, abs=1e-12)


def test_on_trees_both_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither rule is always ahead; over these random laws traversal is, by a little."""
    shape = Shape((("sampled", Shape((("sampled", LEAF),))), ("sampled", LEAF)))
    totals = {"match": 0.0, "rejection": 0.0, "traversal": 0.0}
    for seed in range(12):
        p, q = cache(TableDistribution(3, seed)), cache(TableDistribution(3, seed + 1000))
        for name in totals:
            totals[name] += expected_length(
                rule(name), p, lambda chances, q=q: draw_tree(CONTEXT, q, shape, chances), CONTEXT
            )
    with capsys.disabled():
        print("\ntokens per step on random trees:", {name: round(total / 12, 4) for name, total in totals.items()})
    assert totals["match"] < totals["rejection"] < totals["traversal"]


def chosen_only(shape: Shape) -> Shape:
    return Shape(tuple(("chosen", chosen_only(below)) for _, below in shape.draws))


@examples(30)
@given(p=vocab3, q=vocab3, shape=shapes())
def test_for_chosen_candidates_all_rules_are_match(p: TokenDistribution, q: TokenDistribution, shape: Shape) -> None:
    shape, p = chosen_only(shape), cache(p)
    tree = draw_tree(CONTEXT, q, shape, _no_chances())

    def verdicts(name: str) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
        def run(chances: RandomSource) -> tuple[tuple[int, ...], tuple[int, ...]]:
            verdict = rule(name).verify(tree, target_of(p, tree, CONTEXT, SAMPLED, chances), chances)
            return verdict.path, verdict.tokens

        return outcomes(run)

    expected = verdicts("match")
    for name in ("rejection", "traversal"):
        assert total_variation(verdicts(name), expected) <= EXACT


def _no_chances() -> RandomSource:
    class NoChances:
        def accept(self, r: float, q: float) -> bool:
            raise AssertionError

        def categorical(self, weights: torch.Tensor, position: int) -> int:
            raise AssertionError

    return NoChances()


def test_the_enumeration_itself_sees_a_law_that_is_off() -> None:
    p, q = TableDistribution(3, 1), TableDistribution(3, 2)

    class TakesTheDraft(Verifier):
        lossless = True
        reads_q = False

        def verify(self, tree: DraftTree, target: object, chances: RandomSource):  # type: ignore[no-untyped-def]
            from specdec.verifiers import Verdict

            law = target.probs(ROOT)  # type: ignore[attr-defined]
            return Verdict((ROOT, 1), (tree.tokens[1], chances.categorical(law, 0)))

    emitted = emitted_distribution(
        TakesTheDraft(), p, lambda chances: draw_tree(CONTEXT, q, chain(1), chances), CONTEXT, 2
    )
    assert sum(emitted.values()) == pytest.approx(1.0)
    assert total_variation(emitted, plain_distribution(p, CONTEXT, 2)) > 0.1
