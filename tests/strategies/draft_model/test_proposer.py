"""A drafter with a cache of its own: true laws, the same text, and every way of writing ahead."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec import Budget, DraftModelProposer, DraftTree, Generator, ModelError, PluginError, ToyModel, demo
from specdec.decoding.request_state import TokenView
from specdec.plugins.registry import load_plugins
from specdec.record import StepRecord
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings
from specdec.strategies.request import Request
from specdec.target import Target
from specdec.testing import TableDistribution, check_drafting, toy_host
from tests.support import families
from tests.support.byte_tokenizer import trained

SAMPLED = Settings(temperature=1.0)
WAYS = [
    {"num_tokens": 2},
    {"num_tokens": 2, "confidence": 0.4},
    {"num_tokens": 2, "width": 2, "num_nodes": 4},
    {"num_tokens": 1, "width": 3},
    {"num_tokens": 2, "width": 2, "num_nodes": 4, "siblings": "without_replacement"},
    {"num_tokens": 1, "width": 3, "siblings": "with_replacement", "confidence": 0.3},
]


def by_turns(ways: Sequence[dict[str, Any]], others: Sequence[Any]) -> Iterator[Any]:
    """Yield each way with each of two others, for the night but one of them, which takes turns."""
    for i, way in enumerate(ways):
        for j, other in enumerate(others):
            marks = [pytest.mark.nightly] if (i + j) % 2 else []
            yield pytest.param(way, other, marks=marks, id=f"{way}-{other}")


@pytest.mark.parametrize(("way", "verifier"), [*by_turns(WAYS, ["rejection", "traversal"])])
def test_steps_of_the_drafter_and_a_rule_have_the_targets_law(verifier: str, way: dict[str, Any]) -> None:
    """The production drafter and the production rule; what was rejected stays in the drafter's cache until it syncs."""
    rule = load_plugins().make("verifiers", verifier)
    proposer = DraftModelProposer(model=ToyModel(TableDistribution(3, 5, 0.3), 3), **way)

    check_drafting(proposer, rule, TableDistribution(3, 7), (1, 2), vocab_size=3)


def test_a_weak_token_is_kept_and_only_what_would_follow_it_is_not_drawn() -> None:
    flat = ToyModel(lambda _: [0.25] * 4, 4)
    generator = Generator(
        flat, proposer=DraftModelProposer(model=flat, num_tokens=4, confidence=0.5), verifier="rejection"
    )
    result = generator.generate([0], max_new_tokens=40, temperature=1.0, seed=3)
    assert result.stats.num_nodes == 1 + 2 * (result.stats.steps - 1) - (result.stats.accepted_lengths[-1] == 1)


def sharp(context: tuple[int, ...]) -> list[float]:
    return [0.85 if token == (context[-1] * 3 + len(context)) % 5 else 0.0375 for token in range(5)]


@pytest.mark.parametrize(
    ("way", "temperature"), [*by_turns([*WAYS, {"num_tokens": 4, "width": 3, "num_nodes": 7}], [0.0, 1.0])]
)
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
        result = generator.generate([1, 2], max_new_tokens=40, temperature=temperature, seed=5)
        assert result.stats.accepted_lengths == [5] * 8


def test_draws_follow_their_weights() -> None:
    from scipy import stats

    request = Request(TokenView([0]), 1, 4, frozenset(), 1.0, Randomness(3).stream("draws"))
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    counts = torch.bincount(torch.tensor([request.draw(weights * 2) for _ in range(5_000)]), minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]].numpy(), weights[[0, 2, 3]].numpy() * 5_000).pvalue > 1e-3


@pytest.mark.parametrize("way", [{"num_tokens": 3}, {"num_tokens": 3, "width": 2}], ids=str)
def test_transformers_models_draft_for_a_ragged_batch(way: dict[str, Any]) -> None:
    target = families.make("LlamaConfig", families.SMALL)
    drafter = families.make("Qwen2Config", {**families.SMALL, "num_hidden_layers": 1})
    prompts = [[1, 2, 3], [5], list(range(1, 40)), [9, 8, 7, 6]]
    for temperature in (0.0, 1.0):
        asked = {"max_new_tokens": 13, "temperature": temperature, "seed": 2}
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
    result = generator.generate("def mean(values):", max_new_tokens=24)
    assert result.token_ids == plain.generate("def mean(values):", max_new_tokens=24).token_ids
    assert result.stats.tokens_per_step > 1.0
    assert len(model.model.layers) == model.config.num_hidden_layers == 4
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize(("vocabulary", "temperature"), [("shared", 1.0), ("text", 0.0)])
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
    prompt, asked = demo.prompts()[0].text, {"max_new_tokens": 40}
    plain = Generator(model, tokenizer, proposer="autoregressive").generate(prompt, **asked)
    for vocabulary in ("shared", "text"):
        proposer = DraftModelProposer(model=mirrored, tokenizer=Shuffled(), vocabulary=vocabulary, num_tokens=4)
        result = Generator(model, tokenizer, proposer=proposer).generate(prompt, **asked)
        assert result.token_ids == plain.token_ids
        assert result.stats.tokens_per_step > 4.0, vocabulary
    shared = DraftModelProposer(model=mirrored, tokenizer=Shuffled(), vocabulary="shared", num_tokens=4)
    for verifier in ("rejection", "traversal"):  # q = p, so that every draw is accepted
        sampled = Generator(model, tokenizer, proposer=shared, verifier=verifier)
        result = sampled.generate(prompt, max_new_tokens=40, temperature=1.0, seed=2)
        assert result.stats.accepted_lengths == [5] * 8


@pytest.mark.parametrize("vocabulary", ["shared", "text"])
def test_one_tokenizer_for_both_is_the_same_vocabulary(built_in: tuple[Any, Any], vocabulary: Any) -> None:
    model, tokenizer = built_in
    prompt, asked = demo.prompts()[0].text, {"max_new_tokens": 24}
    plain = Generator(model, tokenizer, proposer="autoregressive").generate(prompt, **asked)
    copied = copy.deepcopy(tokenizer)
    for options in ({"tokenizer": tokenizer}, {}, {"tokenizer": copied}):
        proposer = DraftModelProposer(model=model, vocabulary=vocabulary, num_tokens=4, **options)
        result = Generator(model, tokenizer, proposer=proposer).generate(prompt, **asked)
        assert result.token_ids == plain.token_ids
        assert result.stats.tokens_per_step > 4.0


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
    assert "tokenizer differs from the target's" in refusal(lambda: Generator(model, tokenizer, proposer=foreign))
    shared = DraftModelProposer(model=other, vocabulary="shared")
    assert "needs both tokenizers" in refusal(lambda: Generator(model, tokenizer, proposer=shared))
    assert "the model has 4 layers" in refusal(lambda: Generator(model, tokenizer, proposer="draft_model:layers=4"))
    assert "give either a draft model" in refusal(lambda: Generator(model, tokenizer, proposer="draft_model"))
    assert "can't load" in refusal(lambda: Generator(model, tokenizer, proposer="draft_model:model=./nowhere"))
    small = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 200})
    for vocabulary in ("shared", "text"):
        foreign = DraftModelProposer(model=small, tokenizer=trained(), vocabulary=vocabulary)
        assert "tokenizer has 340 ids" in refusal(lambda foreign=foreign: Generator(model, tokenizer, proposer=foreign))
    chains = families.make(*families.CHAINS["gpt_neo"])
    tree = DraftModelProposer(model=chains, width=2)
    assert "supports chains only" in refusal(
        lambda: Generator(families.make("LlamaConfig", families.SMALL), proposer=tree)
    )
    assert "no backend supports an object of type dict" in refusal(
        lambda: Generator(model, tokenizer, proposer=DraftModelProposer(model={}))
    )


@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize("width", [1, 2])
def test_a_drafter_of_nans_fails_the_requests_where_it_is_and_no_other(verifier: str, width: int) -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [float("nan")] * 4 if 3 in context else [0.5, 0.3, 0.2, 0.0]

    target = ToyModel(lambda _: [0.4, 0.3, 0.3, 0.0], 4)
    generator = Generator(target, proposer=DraftModelProposer(model=ToyModel(law, 4), width=width), verifier=verifier)
    results = generator.generate([[1, 2], [3, 2], [0, 1]], max_new_tokens=12, temperature=1.0, seed=1)
    assert [result.finish_reason for result in results] == ["length", "error", "length"]
    assert "draft model's logits are NaN" in str(results[1].error)


def test_a_processor_that_fails_on_a_path_that_is_merely_drafted_does_no_harm() -> None:
    def grammar(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if [1, 2] in [input_ids[0, at : at + 2].tolist() for at in range(input_ids.shape[1])]:
            raise KeyError("1 is never followed by 2")
        return scores

    grammar.is_path_pure = True  # type: ignore[attr-defined]
    target = ToyModel(lambda context: [0.5, 0.5, 0.0] if context[-1] == 1 else [0.3, 0.4, 0.3], 3)
    drafter = ToyModel(lambda _: [0.2, 0.4, 0.4], 3)
    for verifier in ("match", "rejection", "traversal"):
        generator = Generator(target, proposer=DraftModelProposer(model=drafter, width=2), verifier=verifier)
        results = generator.generate([[0], [1], [2]], max_new_tokens=20, temperature=1.0, logits_processor=grammar)
        assert [result.finish_reason for result in results] == ["length"] * 3, verifier


@pytest.mark.parametrize("width", [1, 2])
def test_ids_of_the_targets_padding_are_not_told_to_the_drafter(width: int) -> None:
    target = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 400})
    drafter = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 350})
    proposer = DraftModelProposer(model=drafter, tokenizer=trained(), width=width)
    generator = Generator(target, trained(), proposer=proposer)
    for prompt in ([399, 5], [5, 399], [5, 6]):
        plain = Generator(target, proposer="autoregressive").generate(prompt, max_new_tokens=20)
        assert generator.generate(prompt, max_new_tokens=20).token_ids == plain.token_ids


def test_a_token_that_only_the_target_has_may_be_forced() -> None:
    target = families.make("LlamaConfig", families.SMALL)
    drafter = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 340})

    class Letters:
        """Ninety-six ids, of which the drafter's tokenizer has the letters too."""

        all_special_tokens: tuple[str, ...] = ()

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) % 96 for letter in text]}

        def decode(self, ids: list[int], **options: Any) -> str:
            return "".join(chr(97 + token % 26) for token in ids)

        def get_vocab(self) -> dict[str, int]:
            return {chr(97 + token) if token < 26 else f"<{token}>": token for token in range(96)}

        def __len__(self) -> int:
            return 96

    def force(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([60 + input_ids.shape[1] % 3]), 0.0)

    force.is_path_pure = True  # type: ignore[attr-defined]
    for width in (1, 2):
        proposer = DraftModelProposer(model=drafter, tokenizer=trained(), vocabulary="shared", width=width)
        generator = Generator(target, Letters(), proposer=proposer)
        result = generator.generate("abc", max_new_tokens=12, logits_processor=force)
        assert result.token_ids == tuple(60 + length % 3 for length in range(3, 15))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": 2, "vocabulary": "text"}, "another model's tokenizer"),
        ({"layers": 2, "tokenizer": "any"}, "another model"),
        ({"model": "x", "vocabulary": "text", "width": 2}, "leave width at 1"),
        ({"model": "x", "width": 30}, "width=30 is above num_nodes=24"),
        ({"model": "x", "siblings": "chosen"}, "siblings is for trees"),
        ({"model": "x", "num_nodes": 7}, "num_nodes is for trees"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PluginError, match=said):
        DraftModelProposer(**options)


def test_a_target_without_a_tokenizer_is_drafted_for_by_ids() -> None:
    target = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 340})
    Generator(target, proposer=DraftModelProposer(model=target, tokenizer=trained())).generate([1], max_new_tokens=3)


def test_the_shipped_drafter_is_right_more_often_than_not(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    generator = Generator(model, tokenizer, proposer=DraftModelProposer(model=demo.load_drafter()))
    assert generator.generate(demo.prompts()[0].text, max_new_tokens=60).stats.tokens_per_step > 2.5


def test_text_may_outgrow_the_drafter() -> None:
    target = families.make("LlamaConfig", families.SMALL)
    drafter = families.make("LlamaConfig", {**families.SMALL, "max_position_embeddings": 20})
    asked = {"max_new_tokens": 40}
    for width in (1, 2):
        generator = Generator(target, proposer=DraftModelProposer(model=drafter, width=width))
        result = generator.generate([1, 2, 3], **asked)
        assert result.token_ids == Generator(target, proposer="autoregressive").generate([1, 2, 3], **asked).token_ids


def test_rows_of_the_drafter_close_with_their_requests() -> None:
    targets: list[Target] = []
    model = ToyModel(sharp, 5)

    host = toy_host(5, reads_q=False)

    def open_and_note(other: Any) -> Target:
        targets.append(host.open(other))
        return targets[-1]

    proposer = DraftModelProposer(model=model, num_tokens=3)
    engine = proposer.bind(replace(host, open=open_and_note))
    requests = [[1, 2], [3, 4, 0], [2, 2]]
    rng = Randomness(0).stream("x")
    drafters = [engine.start(Request(TokenView(tokens), len(tokens), 5, frozenset(), 0.0, rng)) for tokens in requests]
    budget = Budget(10, 10, 9)

    def chains(chosen: list[int]) -> list[list[int]]:
        trees = engine.propose_many([drafters[index] for index in chosen], [budget] * len(chosen))
        return [tree.tokens for tree in trees if isinstance(tree, DraftTree)]

    whole = chains([0, 1, 2])
    assert [row.length for row in targets[0].rows] == [4, 5, 4]  # the last drafted token of each isn't fed
    drafters[0].stop()
    assert chains([1, 2]) == whole[1:]
    assert chains([2, 1]) == [whole[2], whole[1]]
    for drafter in drafters[1:]:
        drafter.stop()
    assert targets[0].rows == ()
    assert targets[0].backend.num_rows == 0


def chunked(target: Target, size: int) -> Target:
    """A target that reads prompts in chunks of that size."""
    target.backend.shapes = replace(target.shapes, chunk=size)
    return target


@pytest.mark.parametrize("length", [2, 9, 30])
@pytest.mark.parametrize("drafters_chunk", [3, 4, 6])
def test_the_drafter_reads_a_prompt_as_the_target_does_chunk_by_chunk(length: int, drafters_chunk: int) -> None:
    model, drafter, fed = ToyModel(sharp, 5), ToyModel(sharp, 5), list[int]()
    generator = Generator(model, proposer=DraftModelProposer(model=drafter, num_tokens=2))
    bound = generator._binding
    chunked(bound.target, 4)
    target = chunked(bound.strategies.own.targets[0], drafters_chunk)
    forward = target.backend.forward
    target.backend.forward = lambda layout: fed.append(layout.width) or forward(layout)  # type: ignore[method-assign, func-returns-value]
    passes = list[tuple[str, int]]()

    def note(record: StepRecord) -> None:
        passes.append((record.kind, sum(fed)))
        fed.clear()

    prompt = [index * 3 % 5 for index in range(length)]
    result = generator.generate(prompt, max_new_tokens=6, on_step=note)
    assert result.token_ids == Generator(model, proposer="autoregressive").generate(prompt, max_new_tokens=6).token_ids
    num_chunks = (length - 1) // 4
    assert [kind for kind, _ in passes][: num_chunks + 1] == ["chunk"] * num_chunks + ["prompt"]
    assert max(num for _, num in passes) <= max(4, drafters_chunk) + 2 + drafters_chunk - 1
    assert target.rows == ()


@pytest.mark.parametrize("vocabulary", ["shared", "text"])
def test_a_drafter_of_another_tokenizer_reads_along_too(vocabulary: str, built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    drafter = families.make("LlamaConfig", {**families.SMALL, "vocab_size": 340, "max_position_embeddings": 512})
    proposer = DraftModelProposer(model=drafter, tokenizer=trained(), vocabulary=vocabulary, num_tokens=3)
    generator = Generator(model, tokenizer, proposer=proposer, weights="stock")
    bound = generator._binding
    chunked(bound.target, 16)
    drafting, lengths = chunked(bound.strategies.own.targets[0], 16), list[int]()

    def note(record: StepRecord) -> None:
        if record.kind == "chunk":
            lengths.extend(row.length for row in drafting.rows)

    prompt = demo.prompts()[0].text[:200]
    result = generator.generate(prompt, max_new_tokens=8, on_step=note)
    plain = Generator(model, tokenizer, proposer="autoregressive").generate(prompt, max_new_tokens=8)
    assert result.token_ids == plain.token_ids
    assert len(set(lengths)) > 2
    assert lengths == sorted(lengths)
