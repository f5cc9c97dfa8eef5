"""A drafter with a cache of its own: true laws, the same text, and every way of writing ahead."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Budget, DraftModelProposer, DraftTree, Generator, Host, ModelError, PluginError, ToyModel, demo
from specdec.backends.toy import ToyBackend
from specdec.driver import Driver
from specdec.masks.dense import DenseCompiler
from specdec.plugins import load_plugins
from specdec.randomness import Chances, Randomness
from specdec.sequence import TokenView
from specdec.settings import Settings
from specdec.strategies.base import Request
from specdec.testing import EXACT, TableLaw, outcomes, plain_law, target_of, total_variation
from tests import families
from tests.byte_tokenizer import trained

SAMPLED = Settings(temperature=1.0)
WAYS = [
    {"num_tokens": 2},
    {"num_tokens": 2, "confidence": 0.4},
    {"num_tokens": 2, "width": 2, "num_nodes": 4},
    {"num_tokens": 1, "width": 3},
    {"num_tokens": 2, "width": 2, "num_nodes": 4, "siblings": "without_replacement"},
    {"num_tokens": 1, "width": 3, "siblings": "with_replacement", "confidence": 0.3},
]


def open_toy(model: Any) -> Driver:
    compiler = DenseCompiler()
    return Driver(ToyBackend.load(model, compiler.compile), compiler.compile)


def no_load(name: str) -> tuple[Any, Any]:
    raise AssertionError(name)


class EnumeratedRequest(Request):
    """Draws through the enumeration."""

    __slots__ = ("chances",)
    chances: Chances

    def draw(self, weights: torch.Tensor) -> int:
        return self.chances.categorical(weights, -1)


def enumerated_request(tokens: list[int], chances: Chances) -> Request:
    rng = Randomness(0).stream("unused")
    request = EnumeratedRequest(TokenView(tokens), len(tokens), 3, frozenset(), 1.0, rng)
    object.__setattr__(request, "chances", chances)
    return request


@pytest.mark.parametrize("verifier", ["rejection", "traversal", "match"])
@pytest.mark.parametrize("way", WAYS, ids=str)
@settings(max_examples=3)
@given(p=st.builds(TableLaw, st.just(3), st.integers(0, 999)), q_seed=st.integers(0, 999))
def test_steps_of_the_drafter_and_a_rule_have_the_targets_law(
    verifier: str, way: dict[str, Any], p: TableLaw, q_seed: int
) -> None:
    """The production drafter and the production rule; what was rejected stays in the drafter's cache until it syncs."""
    rule = load_plugins().make("verifiers", verifier)
    proposer = DraftModelProposer(model=ToyModel(TableLaw(3, q_seed, 0.3), 3), **way)

    def run(chances: Chances) -> tuple[int, ...]:
        tokens = [1, 2]
        host = Host(None, None, 3, rule.reads_q, no_load, open_toy)
        drafter = proposer.bind(host).start(enumerated_request(tokens, chances))
        while len(tokens) < 4:
            tree = drafter.propose(Budget(10, 10, 3))
            tree.check(tokens[-1], 3, Budget(10, 10, 3), "draft")
            tree.check_draws(3, "draft")
            verdict = rule.verify(tree, target_of(p, tree, list(tokens), SAMPLED, chances), chances)
            tokens += verdict.tokens
        return tuple(tokens[2:4])

    assert total_variation(outcomes(run), plain_law(p, (1, 2), 2)) <= EXACT


def test_a_weak_token_is_kept_and_only_what_would_follow_it_is_not_drawn() -> None:
    flat = ToyModel(lambda _: [0.25] * 4, 4)
    generator = Generator(
        flat, proposer=DraftModelProposer(model=flat, num_tokens=4, confidence=0.5), verifier="rejection"
    )
    result = generator.generate([0], max_new_tokens=40, temperature=1.0, seed=3)
    assert result.stats.num_nodes == 1 + 2 * (result.stats.steps - 1) - (result.stats.accepted_lengths[-1] == 1)


def sharp(context: tuple[int, ...]) -> list[float]:
    return [0.85 if token == (context[-1] * 3 + len(context)) % 5 else 0.0375 for token in range(5)]


@pytest.mark.parametrize("way", [*WAYS, {"num_tokens": 4, "width": 3, "num_nodes": 7}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plain_decodings_under_match_alone_and_in_a_batch(way: dict[str, Any], temperature: float) -> None:
    target, drafter = ToyModel(sharp, 5), ToyModel.random(5, order=1, seed=4)
    prompts = [[1], [2, 3, 4], [0, 0], [4, 1, 2, 3]]
    asked = {"max_new_tokens": 30, "temperature": temperature, "seed": 8}
    plain = Generator(target, proposer="autoregressive").generate(prompts, **asked)
    for model in (target, drafter):
        generator = Generator(target, proposer=DraftModelProposer(model=model, **way), max_batch_size=3)
        drafted = generator.generate(prompts, **asked)
        assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
        assert generator.generate(prompts[1], **asked).token_ids == plain[1].token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_that_is_the_target_is_always_right(temperature: float) -> None:
    """Greedy by its argmax; under match by the noise it is given; under rejection because r = q."""
    model = ToyModel(sharp, 5)
    for verifier in ("match", "rejection", "traversal"):
        generator = Generator(model, proposer=DraftModelProposer(model=model, num_tokens=4), verifier=verifier)
        result = generator.generate([1, 2], max_new_tokens=41, temperature=temperature, seed=5)
        assert result.stats.accepted_lengths == [1] + [5] * 8


def test_draws_follow_their_weights() -> None:
    from scipy import stats

    request = Request(TokenView([0]), 1, 4, frozenset(), 1.0, Randomness(3).stream("draws"))
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    counts = torch.bincount(torch.tensor([request.draw(weights * 2) for _ in range(20_000)]), minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]].numpy(), weights[[0, 2, 3]].numpy() * 20_000).pvalue > 1e-3


@pytest.mark.parametrize("way", [{"num_tokens": 3}, {"num_tokens": 3, "width": 2}], ids=str)
def test_transformers_models_draft_for_a_ragged_batch(way: dict[str, Any]) -> None:
    target = families.make("LlamaConfig", families.SMALL)
    drafter = families.make("Qwen2Config", {**families.SMALL, "num_hidden_layers": 1})
    prompts = [[1, 2, 3], [5], list(range(1, 40)), [9, 8, 7, 6]]
    for temperature in (0.0, 1.0):
        asked = {"max_new_tokens": 25, "temperature": temperature, "seed": 2}
        plain = Generator(target, proposer="autoregressive").generate(prompts, **asked)
        for model in (drafter, target):
            generator = Generator(target, proposer=DraftModelProposer(model=model, **way), max_batch_size=3)
            results = generator.generate(prompts, **asked)
            assert [result.token_ids for result in results] == [result.token_ids for result in plain]
        assert all(result.stats.tokens_per_step > 3 for result in results)  # the target drafting for itself


def test_the_first_layers_draft_with_the_targets_own_weights(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    generator = Generator(model, tokenizer, proposer="draft_model:layers=3,num_tokens=3")
    plain = Generator(model, tokenizer, proposer="autoregressive")
    result = generator.generate("def mean(values):", max_new_tokens=40)
    assert result.token_ids == plain.generate("def mean(values):", max_new_tokens=40).token_ids
    assert result.stats.tokens_per_step > 1.0
    assert len(model.model.layers) == model.config.num_hidden_layers == 4
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize("vocabulary", ["shared", "text"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_of_another_tokenizer(built_in: tuple[Any, Any], vocabulary: str, temperature: float) -> None:
    model, tokenizer = built_in
    drafter = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 340})
    proposer = DraftModelProposer(model=drafter, tokenizer=trained(), vocabulary=vocabulary, num_tokens=4)
    prompts = ["def mean(values):", "naïve café 東京 😀", "a"]
    asked = {"max_new_tokens": 24, "temperature": temperature, "seed": 1}
    plain = Generator(model, tokenizer, proposer="autoregressive").generate(prompts, **asked)
    drafted = Generator(model, tokenizer, proposer=proposer).generate(prompts, **asked)
    assert [result.error for result in drafted] == [None] * 3
    assert [result.token_ids for result in drafted] == [result.token_ids for result in plain]
    assert max(result.stats.num_nodes - result.stats.steps for result in drafted) > 10, "nothing was drafted"


def test_text_is_written_on_where_tokenizers_agree_on_nothing_but_text(built_in: tuple[Any, Any]) -> None:
    """The target itself as drafter, its ids shuffled: every draft is right, once its text has been encoded anew."""
    model, tokenizer = built_in

    class Shuffled:
        """The same text under other ids."""

        all_special_tokens = tokenizer.all_special_tokens

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [2047 - token for token in tokenizer(text, **options)["input_ids"]]}

        def decode(self, ids: list[int], **options: Any) -> str:
            return str(tokenizer.decode([2047 - token for token in ids], **options))

        def get_vocab(self) -> dict[str, int]:
            return {token: 2047 - number for token, number in tokenizer.get_vocab().items()}

        def __len__(self) -> int:
            return 2048

    mirrored = copy.deepcopy(model)
    with torch.no_grad():
        embedding = mirrored.get_input_embeddings().weight
        embedding.copy_(embedding.flip(0))
    # Text that the model knows comes in the tokens that its tokenizer would choose, so encoding it anew loses nothing.
    prompt, asked = demo.prompts()[0].text, {"max_new_tokens": 60}
    plain = Generator(model, tokenizer, proposer="autoregressive").generate(prompt, **asked)
    for vocabulary in ("shared", "text"):
        proposer = DraftModelProposer(model=mirrored, tokenizer=Shuffled(), vocabulary=vocabulary, num_tokens=4)
        result = Generator(model, tokenizer, proposer=proposer).generate(prompt, **asked)
        assert result.token_ids == plain.token_ids
        assert result.stats.tokens_per_step > 4.0, vocabulary


def refusal(build: Callable[[], object]) -> str:
    with pytest.raises((ModelError, PluginError)) as caught:
        build()
    return str(caught.value)


def test_what_cannot_be_brought_together_is_refused_with_the_remedy(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    other = families.make("LlamaConfig", families.SMALL)
    said = refusal(lambda: Generator(model, tokenizer, proposer=DraftModelProposer(model=other)))
    assert "vocabulary is 96, the target's 2048" in said
    assert "vocabulary='shared'" in said
    same_size = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 2048})
    foreign = DraftModelProposer(model=same_size, tokenizer=trained())
    assert "tokenizer is another" in refusal(lambda: Generator(model, tokenizer, proposer=foreign))
    shared = DraftModelProposer(model=other, vocabulary="shared")
    assert "needs both tokenizers" in refusal(lambda: Generator(model, tokenizer, proposer=shared))
    assert "the model has 4 layers" in refusal(lambda: Generator(model, tokenizer, proposer="draft_model:layers=4"))
    assert "one of the two" in refusal(lambda: Generator(model, tokenizer, proposer="draft_model"))
    assert "can't load" in refusal(lambda: Generator(model, tokenizer, proposer="draft_model:model=./nowhere"))
    assert "no backend drives a dict" in refusal(
        lambda: Generator(model, tokenizer, proposer=DraftModelProposer(model={}))
    )


def test_a_drafter_of_nans_fails_its_requests_by_name() -> None:
    broken = families.make("LlamaConfig", families.SMALL)
    generator = Generator(families.make("LlamaConfig", families.SMALL), proposer=DraftModelProposer(model=broken))
    with torch.no_grad():
        broken.get_output_embeddings().weight.fill_(torch.nan)
    [result] = generator.generate([[1, 2, 3]], max_new_tokens=5)
    assert result.finish_reason == "error"
    assert "draft model's logits are NaN" in str(result.error)


def test_text_may_outgrow_the_drafter() -> None:
    target = families.make("LlamaConfig", families.SMALL)
    drafter = families.make("LlamaConfig", {**families.SMALL, "max_position_embeddings": 20})
    asked = {"max_new_tokens": 40}
    for width in (1, 2):
        generator = Generator(target, proposer=DraftModelProposer(model=drafter, width=width))
        result = generator.generate([1, 2, 3], **asked)
        assert result.token_ids == Generator(target, proposer="autoregressive").generate([1, 2, 3], **asked).token_ids


def test_rows_of_the_drafter_close_with_their_requests() -> None:
    drivers: list[Driver] = []
    model = ToyModel(sharp, 5)

    def open_and_note(other: Any) -> Driver:
        drivers.append(open_toy(other))
        return drivers[-1]

    proposer = DraftModelProposer(model=model, num_tokens=3)
    engine = proposer.bind(Host(model, None, 5, False, no_load, open_and_note))
    requests = [[1, 2], [3, 4, 0], [2, 2]]
    rng = Randomness(0).stream("x")
    drafters = [engine.start(Request(TokenView(tokens), len(tokens), 5, frozenset(), 0.0, rng)) for tokens in requests]
    budget = Budget(10, 10, 9)

    def chains(chosen: list[int]) -> list[list[int]]:
        trees = engine.propose_many([drafters[index] for index in chosen], [budget] * len(chosen))
        return [tree.tokens for tree in trees if isinstance(tree, DraftTree)]

    whole = chains([0, 1, 2])
    assert drivers[0].lengths == [4, 5, 4]  # the last drafted token of each isn't fed
    drafters[0].stop()
    assert chains([1, 2]) == whole[1:]
    assert chains([2, 1]) == [whole[2], whole[1]]
    for drafter in drafters[1:]:
        drafter.stop()
    assert drivers[0].lengths == []
