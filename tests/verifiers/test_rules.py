"""The rules at their edges: what the random primitives promise, lossy acceptance, faults, processors, bad laws."""

import math
import warnings
from typing import Any

import pytest
import torch
from scipy import stats

from specdec import Budget, DraftModelProposer, DraftTree, Generator, PluginError, Request, RequestError, ToyModel
from specdec.sampling.distributions import NodeDistributions
from specdec.sampling.randomness import Randomness, RandomSource
from specdec.testing import (
    Shape,
    TableDistribution,
    draw_tree,
    emitted_distribution,
    plain_distribution,
    total_variation,
)
from specdec.tree import Draw, merge
from specdec.verifiers.base import Verdict
from specdec.verifiers.match import MatchVerifier
from specdec.verifiers.rejection import RejectionVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier
from tests.support.scripted import Scripted

Q_RULES = ["rejection", "traversal"]


def test_accept_keeps_the_ratio_and_never_the_impossible() -> None:
    randomness = Randomness(4)
    kept = sum(randomness.accept(0.3, 0.4) for _ in range(20_000))
    assert stats.binomtest(kept, 20_000, 0.75).pvalue > 1e-3
    assert all(randomness.accept(0.2, 0.2) for _ in range(1000))
    assert not any(randomness.accept(0.0, q) for q in (0.0, 0.5) for _ in range(1000))


def test_a_uniform_of_exactly_zero_accepts_nothing_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def random(self) -> float:
            return 0.0

    randomness = Randomness(0)
    monkeypatch.setattr(randomness, "_acceptance", Zero())
    assert not randomness.accept(0.0, 0.7)
    assert randomness.accept(1e-30, 0.7)


def test_accepts_of_one_seed_repeat_and_differ_from_the_noise_of_positions() -> None:
    first, second = (([r := Randomness(9)] and [r.accept(0.5, 1.0) for _ in range(64)]) for _ in range(2))
    assert first == second
    noise = [float(u) < 0.5 for u in Randomness(9).uniforms(0, 64)]
    assert first != noise


@pytest.mark.parametrize("verifier", Q_RULES)
def test_sampled_text_follows_the_law_through_the_whole_generator(verifier: str) -> None:
    """Fifteen hundred seeds of three tokens each, drafted by another model, every choice keyed by the seed."""
    p, q = TableDistribution(3, 5), TableDistribution(3, 6)
    generator = Generator(
        ToyModel(p, 3), proposer=DraftModelProposer(model=ToyModel(q, 3), num_tokens=2), verifier=verifier
    )
    counts = dict.fromkeys(plain_distribution(p, (1,), 3), 0)
    for seed in range(0, 1500, 500):
        results = generator.generate([[1]] * 500, max_new_tokens=3, temperature=1.0, seed=list(range(seed, seed + 500)))
        for result in results:
            counts[result.token_ids] += 1
    expected = [chance * 1500 for chance in plain_distribution(p, (1,), 3).values()]
    assert stats.chisquare(list(counts.values()), expected).pvalue > 1e-3


@pytest.mark.parametrize("verifier", Q_RULES)
def test_one_seed_gives_one_text_whatever_else_is_in_the_batch(verifier: str) -> None:
    generator = Generator(
        ToyModel.random(5, seed=1), proposer=DraftModelProposer(model=ToyModel.random(5, seed=2)), verifier=verifier
    )
    prompts = [[1], [2, 3], [4, 0, 1], [1]]
    results = generator.generate(prompts, max_new_tokens=30, temperature=1.0, seed=6)
    assert results[0].token_ids == results[3].token_ids
    for prompt, result in zip(prompts, results, strict=True):
        assert generator.generate(prompt, max_new_tokens=30, temperature=1.0, seed=6).token_ids == result.token_ids


# Typical acceptance


def lossy(**options: float) -> TypicalVerifier:
    return TypicalVerifier(**options)


def test_typical_acceptance_is_lossy_and_says_so_once_at_construction() -> None:
    model = ToyModel.random(4, seed=3)
    with pytest.warns(UserWarning, match="TypicalVerifier is lossy") as caught:
        generator = Generator(model, proposer=DraftModelProposer(model=model), verifier="typical")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = generator.generate([[1], [2]], max_new_tokens=10, temperature=1.0, seed=1)
    assert [result.lossless for result in results] == [False, False]
    assert Generator(model).generate([1], max_new_tokens=2).lossless


def test_typical_acceptance_changes_the_law_by_a_lot() -> None:
    p, q = TableDistribution(3, 1), TableDistribution(3, 2)
    shape = Shape((("sampled", Shape((("sampled", Shape()),))),))
    emitted = emitted_distribution(lossy(), p, lambda chances: draw_tree((1,), q, shape, chances), (1,), 3)
    assert total_variation(emitted, plain_distribution(p, (1,), 3)) > 0.1


def test_typical_acceptance_keeps_what_is_likelier_than_its_threshold() -> None:
    law = torch.tensor([0.5, 0.25, 0.2, 0.05])
    threshold = 0.3 * math.exp(sum(x * math.log(x) for x in law.tolist()))
    assert 0.05 < threshold < 0.2

    class Flat:
        def probs(self, node: int) -> torch.Tensor:
            return law

        def draw(self, node: int) -> int:
            return 0

        def position(self, node: int) -> int:
            return node

    tree = DraftTree(9)
    tree.add_chain(tree.add(0, 3), [0, 0, 0])  # below an implausible token: out
    short = tree.add(0, 0)
    tree.add(short, 2)
    best = tree.add(short, 1)
    verdict = lossy(epsilon=1.0).verify(tree, Flat(), Randomness(0))
    assert verdict.path == (0, short, best), "of equally long paths the likelier"
    assert verdict.tokens == (0, 1, 0)


def test_typical_acceptance_of_greedy_text_is_match() -> None:
    model, drafter = ToyModel.random(6, seed=3), ToyModel.random(6, seed=4)
    plain = Generator(model, proposer="autoregressive").generate([1], max_new_tokens=40)
    with pytest.warns(UserWarning, match="lossy"):
        generator = Generator(model, proposer=DraftModelProposer(model=drafter, width=2), verifier="typical")
    assert generator.generate([1], max_new_tokens=40).token_ids == plain.token_ids


# Laws that are not what they seem


def sampled_chain(q: Any) -> Scripted:
    def script(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add(0, 1, q=q)
        return tree

    return Scripted(script=script)


@pytest.mark.parametrize("verifier", Q_RULES)
@pytest.mark.parametrize(
    ("q", "said"),
    [
        (torch.tensor([0.5, float("nan"), 0.5, 0.0]), "NaN"),
        (torch.tensor([0.5, 0.7, -0.2, 0.0]), "negative"),
        (torch.tensor([0.5, 0.4, 0.4, 0.0]), "sums to 1.3"),
        (torch.tensor([0.5, 0.0, 0.5, 0.0]), "is token 1, which has probability 0 in its own distribution"),
        (torch.tensor([0.5, 0.5]), "shape (2,), but the target's vocabulary is 4"),
        (torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.bfloat16), "bfloat16"),
    ],
)
def test_a_draw_with_a_law_it_cannot_have_come_from_is_refused_by_name(verifier: str, q: Any, said: str) -> None:
    model = ToyModel.random(4)
    with pytest.raises(PluginError, match="proposer Scripted returned an illegal tree: node 1") as caught:
        Generator(model, proposer=sampled_chain(q), verifier=verifier).generate([1], max_new_tokens=9, temperature=1.0)
    assert said in str(caught.value)
    match = Generator(model, proposer=sampled_chain(q)).generate([1], max_new_tokens=9)
    assert match.finish_reason == "length", "match reads no distribution"


@pytest.mark.parametrize("verifier", Q_RULES)
def test_trees_whose_laws_are_untrue_are_left_to_match_and_counted(verifier: str) -> None:
    model = ToyModel.random(4, seed=2)
    q = torch.full((4,), 0.25)

    def merged(request: Request, budget: Budget) -> DraftTree:
        one, other = DraftTree(request.root), DraftTree(request.root)
        one.add(0, request.draw(q), q=q)
        other.add(0, request.draw(q), q=q)
        return merge([one, other])

    asked = {"max_new_tokens": 30, "temperature": 1.0, "seed": 3}
    result = Generator(model, proposer=Scripted(script=merged), verifier=verifier).generate([1], **asked)
    assert result.stats.num_fallbacks == result.stats.steps
    assert result.token_ids == Generator(model, proposer="autoregressive").generate([1], **asked).token_ids
    assert Generator(model, verifier=verifier).generate([1], **asked).stats.num_fallbacks == 0


def test_rounding_in_a_law_never_lets_an_impossible_token_through() -> None:
    """q exceeds p everywhere by rounding, so that nothing is left of p when token 2 is rejected."""
    q = torch.tensor([0.5, 0.5, 4e-6])
    tree = DraftTree(0)
    tree.add(0, 2, q=q)
    tree.check_draws(3, "test")

    class Half:
        def probs(self, node: int) -> torch.Tensor:
            return torch.tensor([0.5, 0.5, 0.0])

        def draw(self, node: int) -> int:
            raise AssertionError

        def position(self, node: int) -> int:
            return 1

    for rule in (RejectionVerifier(), TraversalVerifier()):
        assert {rule.verify(tree, Half(), Randomness(seed)).tokens for seed in range(40)} == {(0,), (1,)}


def test_a_draw_that_hangs_elsewhere_is_refused() -> None:
    for draws in ([Draw(7)], [Draw(2)], [Draw(-1)]):
        tree = DraftTree(0)
        tree.add(tree.add(0, 1), 2)
        tree.draws[0] = draws
        with pytest.raises(PluginError, match="isn't a candidate there"):
            tree.check_draws(3, "test")


# Processors


class Forgetful:
    """Counts its calls, as watermarks do, and is right only if it is asked along the text."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.asked.append(input_ids[0].tolist())
        return scores


def test_a_processor_that_may_keep_state_is_refused_where_off_text_paths_are_asked_about() -> None:
    model = ToyModel.random(4)
    generator = Generator(model, proposer=DraftModelProposer(model=model), verifier=TraversalVerifier())
    with pytest.raises(RequestError, match=r"TraversalVerifier needs .* Forgetful may depend .* is_path_pure"):
        generator.generate([1], max_new_tokens=4, temperature=1.0, logits_processor=Forgetful())

    def pure(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores

    pure.is_path_pure = True  # type: ignore[attr-defined]
    from transformers import NoRepeatNGramLogitsProcessor

    asked = {"max_new_tokens": 4, "temperature": 1.0}
    generator.generate([1], logits_processor=[pure, NoRepeatNGramLogitsProcessor(3)], **asked)


def test_rejection_asks_a_stateful_processor_along_the_text_only() -> None:
    model, drafter, processor = ToyModel.random(4, seed=1), ToyModel.random(4, seed=2), Forgetful()
    generator = Generator(model, proposer=DraftModelProposer(model=drafter, width=2), verifier=RejectionVerifier())
    result = generator.generate([1, 2], max_new_tokens=20, temperature=1.0, seed=4, logits_processor=processor)
    text = [1, 2, *result.token_ids]
    # The last verdict may reach beyond the length at which the text was cut.
    assert processor.asked[:20] == [text[:end] for end in range(2, 22)]


class ReadsTwice(MatchVerifier):
    """Looks at the distribution of each accepted node before it is drawn from."""

    def verify(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> Verdict:
        node: int | None = 0
        while node is not None:
            assert target.probs(node) is not None
            node = tree.child(node, target.draw(node))
        return super().verify(tree, target, source)


def test_a_stateful_processor_runs_once_for_a_node_that_a_rule_reads_twice() -> None:
    model, drafter, processor = ToyModel.random(4, seed=1), ToyModel.random(4, seed=2), Forgetful()
    generator = Generator(model, proposer=DraftModelProposer(model=drafter, width=2), verifier=ReadsTwice())
    result = generator.generate([1, 2], max_new_tokens=20, temperature=1.0, seed=4, logits_processor=processor)
    text = [1, 2, *result.token_ids]
    assert processor.asked[:20] == [text[:end] for end in range(2, 22)]


# Faults on and off the text


@pytest.mark.parametrize("verifier", Q_RULES)
def test_what_was_found_before_a_fault_is_kept(verifier: str) -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [float("nan")] * 4 if len(context) >= 9 else [0.0, 0.0, 1.0, 0.0]

    def drafter(context: tuple[int, ...]) -> list[float]:
        return [0.0, 0.0, 1.0, 0.0]

    generator = Generator(
        ToyModel(law, 4), proposer=DraftModelProposer(model=ToyModel(drafter, 4), num_tokens=4), verifier=verifier
    )
    good, bad = generator.generate([[2, 2], [2, 2, 2, 2]], max_new_tokens=6, temperature=1.0, seed=0)
    assert good.finish_reason == "length"
    assert (bad.finish_reason, bad.token_ids) == ("error", (2,) * 5)
    assert "logits for position 9 are NaN" in str(bad.error)


@pytest.mark.parametrize("verifier", Q_RULES)
def test_faults_on_paths_that_the_text_does_not_take_change_nothing(verifier: str) -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [float("nan")] * 4 if 3 in context[1:] else [0.5, 0.3, 0.2, 0.0]

    def drafter(context: tuple[int, ...]) -> list[float]:
        return [0.2, 0.2, 0.2, 0.4]

    generator = Generator(
        ToyModel(law, 4), proposer=DraftModelProposer(model=ToyModel(drafter, 4), width=2), verifier=verifier
    )
    results = generator.generate([[1]] * 20, max_new_tokens=20, temperature=1.0, seed=list(range(20)))
    assert {result.finish_reason for result in results} == {"length"}


@pytest.mark.parametrize("verifier", Q_RULES)
def test_ends_of_text_and_lengths_cut_a_verdict_anywhere(verifier: str) -> None:
    model = ToyModel(lambda _: [0.1, 0.3, 0.3, 0.3], 4)
    generator = Generator(model, proposer=DraftModelProposer(model=model, num_tokens=6), verifier=verifier)
    for seed in range(30):
        result = generator.generate([1], max_new_tokens=1 + seed % 9, temperature=1.0, seed=seed, eos_token_id=0)
        is_stopped = 0 in result.token_ids
        assert result.finish_reason == ("stop" if is_stopped else "length")
        assert is_stopped or len(result.token_ids) == 1 + seed % 9
        assert 0 not in result.token_ids[:-1]
