"""The front door: what comes back, in which order, with which seed, in pieces or at once."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from specdec import Generator, RequestError, ToyModel
from specdec.backends.toy import TokenDistribution
from specdec.decoding.strategy import Strategy
from specdec.plugins.registry import load_plugins
from specdec.record import StepRecord
from tests.support import families
from tests.support.byte_tokenizer import END, trained
from tests.support.generators import HEADS, OF_OTHER_MODELS, proposer_of
from tests.support.plain import decode_law, keyed_gumbel
from tests.support.scripted import Scripted

# But for heads, which need a model with hidden states.
BUILT_IN = [
    plugin.name
    for plugin in load_plugins().of_kind("proposers")
    if plugin.distribution == "specdec" and plugin.name not in (*HEADS, *OF_OTHER_MODELS)
]
VOCAB = 8
PROMPTS = [[3, 1], [5], [2, 2, 2, 6], [0, 7, 1], [4, 4]]
SAMPLED = {"max_new_tokens": 20, "temperature": 1.0}


def toy(max_positions: int | None = None) -> ToyModel:
    made = ToyModel.random(VOCAB, order=1, seed=3)
    made.max_positions = max_positions
    return made


def speller(text: str) -> tuple[ToyModel, list[int]]:
    """A model that says the text's tokens over and over, and the tokens."""
    ids = trained()(text)["input_ids"]

    def law(context: tuple[int, ...]) -> list[float]:
        p = [0.0] * len(trained())
        p[ids[(len(context) - 1) % len(ids)]] = 1.0
        return p

    return ToyModel(law, len(trained())), ids


def test_a_result_has_new_tokens_figures_and_the_seed() -> None:
    model = toy()
    generator = Generator(model)
    generator.prepare()  # drafts are good from the first token on
    result = generator.generate([3, 1], max_new_tokens=30, temperature=1.0, seed=11)
    assert list(result.token_ids) == decode_law(model.probs, [3, 1], 30, seed=11)
    assert (result.finish_reason, result.seed, result.text, result.error) == ("length", 11, None, None)
    stats = result.stats
    assert sum(stats.accepted_lengths) == stats.num_tokens == 30
    assert len(stats.accepted_lengths) == stats.steps < 30
    assert stats.tokens_per_step == pytest.approx(30 / stats.steps)
    assert stats.num_nodes >= stats.steps
    assert all(seconds >= 0 for seconds in stats.seconds.values())
    assert 0 < stats.seconds_to_first_token <= stats.total_seconds


def test_plain_decoding_takes_a_step_and_a_node_for_each_token() -> None:
    stats = Generator(toy(), proposer="autoregressive").generate([3], max_new_tokens=12).stats
    assert (stats.accepted_lengths, stats.num_nodes, stats.tokens_per_step) == ([1] * 12, 12, 1.0)


@pytest.mark.parametrize("proposer", BUILT_IN)
def test_decoding_stops_at_an_end_of_text_id_which_is_in_the_tokens(proposer: str) -> None:
    model = toy()
    endless = decode_law(model.probs, [3, 1], 40, seed=5)
    end = endless[9]
    expected = endless[: endless.index(end) + 1]
    result = Generator(model, proposer=proposer_of(proposer, model.vocab_size)).generate(
        [3, 1], eos_token_id=end, seed=5, temperature=1.0
    )
    assert (list(result.token_ids), result.finish_reason) == (expected, "stop")


@pytest.mark.parametrize("proposer", BUILT_IN)
def test_a_stop_string_cuts_the_text_and_not_the_tokens(proposer: str) -> None:
    model, ids = speller("the cat sat on the mat. ")
    result = Generator(model, trained(), proposer=proposer_of(proposer, model.vocab_size)).generate(
        [0], max_new_tokens=60, stop=["at on", "mat"]
    )
    assert (result.text, result.finish_reason) == ("the cat s", "stop")
    assert list(result.token_ids) == ids[: len(result.token_ids)]
    assert "at on" in trained().decode(result.token_ids)
    assert "at on" not in trained().decode(result.token_ids[:-1])


def test_stop_strings_are_refused_without_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        Generator(toy()).generate([3], stop="x")


@pytest.mark.parametrize("max_batch_size", [1, 2, 8])
def test_a_batch_gives_what_each_prompt_gives_alone_in_the_order_of_the_prompts(max_batch_size: int) -> None:
    events: list[tuple[str, int]] = []
    generator = Generator(toy(), max_batch_size=max_batch_size)
    seeds = [1, 2, 3, 4, 5]
    together = generator.generate(PROMPTS, seed=seeds, eos_token_id=6, **SAMPLED)
    for prompt, seed, result in zip(PROMPTS, seeds, together, strict=True):
        alone = generator.generate(prompt, seed=seed, eos_token_id=6, **SAMPLED)
        assert (result.token_ids, result.finish_reason, result.seed) == (alone.token_ids, alone.finish_reason, seed)
    Generator(toy(), proposer=Scripted(events=events), max_batch_size=max_batch_size).generate(PROMPTS, **SAMPLED)
    open_requests = np.cumsum([1 if stage == "start" else -1 for stage, _ in events])
    assert max(open_requests) == min(max_batch_size, len(PROMPTS))


def test_one_seed_serves_each_prompt_of_a_batch() -> None:
    results = Generator(toy()).generate([[3, 1], [3, 1], [5]], seed=9, **SAMPLED)
    assert results[0].token_ids == results[1].token_ids
    assert list(results[2].token_ids) == decode_law(toy().probs, [5], 20, seed=9)


def test_a_fresh_seed_is_reported_and_reproduces_the_text() -> None:
    generator = Generator(toy())
    first, second = generator.generate([[3, 1], [3, 1]], **SAMPLED)
    assert first.seed != second.seed
    assert generator.generate([3, 1], seed=first.seed, **SAMPLED).token_ids == first.token_ids
    mixed = generator.generate([[3, 1], [3, 1]], seed=[second.seed, None], **SAMPLED)
    assert mixed[0].token_ids == second.token_ids


@pytest.mark.parametrize(("prompt", "seeds"), [([[3], [1]], [1]), ([3, 1], [1, 2])])
def test_a_wrong_number_of_seeds_is_refused(prompt: Any, seeds: list[int]) -> None:
    given = "1 seed given for 2 prompts" if isinstance(prompt[0], list) else "2 seeds given for 1 prompt"
    fault = f"{given}: give one seed, or one for each"
    with pytest.raises(RequestError, match=fault):
        Generator(toy()).generate(prompt, seed=seeds)


@pytest.mark.parametrize("proposer", BUILT_IN)
@pytest.mark.parametrize("stop", [(), ("mat",)])
def test_the_chunks_of_a_stream_join_to_the_result(proposer: str, stop: tuple[str, ...]) -> None:
    model, _ = speller("naïve 東京 😀 cats sat on the mat. ")
    generator = Generator(model, trained(), proposer=proposer_of(proposer, model.vocab_size))
    settings = {"max_new_tokens": 50, "stop": stop}
    chunks = list(generator.stream([0], **settings))
    result = chunks[-1].result
    whole = generator.generate([0], **settings)
    assert result is not None
    assert [chunk.result for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert sum((chunk.token_ids for chunk in chunks), ()) == result.token_ids == whole.token_ids
    assert "".join(chunk.text for chunk in chunks) == result.text == whole.text
    assert [len(chunk.token_ids) for chunk in chunks] == result.stats.accepted_lengths
    assert ("mat" in whole.text) == (stop == ())


def test_the_last_chunk_has_what_was_held_back_because_it_might_have_begun_a_stop_string() -> None:
    model, _ = speller("the cat sat")
    chunks = list(Generator(model, trained()).stream("the", max_new_tokens=9, stop="cat sat on"))
    result = chunks[-1].result
    assert result is not None
    assert result.text == trained().decode(result.token_ids)
    assert result.text.endswith("cat s")
    assert "".join(chunk.text for chunk in chunks) == result.text


def test_the_chunks_of_a_batch_carry_their_prompts_place() -> None:
    generator = Generator(toy(), max_batch_size=2)
    tokens: dict[int, tuple[int, ...]] = dict.fromkeys(range(5), ())
    for chunk in generator.stream(PROMPTS, seed=4, **SAMPLED):
        tokens[chunk.index] += chunk.token_ids
    alone = [generator.generate(prompt, seed=4, **SAMPLED).token_ids for prompt in PROMPTS]
    assert list(tokens.values()) == alone


def test_a_second_call_during_a_stream_is_refused_and_works_after_it() -> None:
    generator = Generator(toy())
    stream = generator.stream([3], max_new_tokens=9)
    next(stream)
    for call in (lambda: generator.generate([1]), lambda: next(generator.stream([1]))):
        with pytest.raises(RequestError, match="this generator is already decoding: exhaust or close its stream"):
            call()
    rest = list(stream)
    assert rest[-1].result is not None
    assert rest[-1].result.finish_reason == "length"
    assert generator.generate([1], max_new_tokens=3).finish_reason == "length"


@pytest.mark.parametrize("num_taken", [0, 1, 3, 6])
def test_closing_a_stream_cancels_and_the_generator_works_as_before(num_taken: int) -> None:
    events: list[tuple[str, int]] = []
    generator = Generator(toy(), proposer=Scripted(events=events), max_batch_size=2)
    before = [generator.generate(prompt, seed=2, **SAMPLED).token_ids for prompt in PROMPTS]
    events.clear()
    stream: Iterator[Any] = generator.stream(PROMPTS, seed=2, **SAMPLED)
    for _ in range(num_taken):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert sorted(token for stage, token in events if stage == "start") == sorted(
        token for stage, token in events if stage == "stop"
    )
    assert generator._binding.target.backend.num_rows == 0
    assert [result.token_ids for result in generator.generate(PROMPTS, seed=2, **SAMPLED)] == before


def forbid_two_back(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    scores = scores.clone()
    if input_ids.shape[1] >= 2:
        scores[0, input_ids[0, -2]] = -torch.inf
    return scores


@pytest.mark.parametrize("proposer", BUILT_IN)
@pytest.mark.parametrize("seed", [None, 8])
def test_a_processor_sees_the_text_that_its_token_follows_once_and_in_order(proposer: str, seed: int | None) -> None:
    model, tokens = toy(), [3, 1]
    for _ in range(40):
        p = np.array(model.probs(tuple(tokens)))
        p[tokens[-2]] = 0.0
        with np.errstate(divide="ignore"):
            scores = np.log(p) + (0.0 if seed is None else keyed_gumbel(seed, len(tokens), VOCAB))
        tokens.append(int(scores.argmax()))

    seen = []

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0].tolist())
        return forbid_two_back(input_ids, scores)

    settings = {"temperature": 0.0 if seed is None else 1.0, "seed": seed, "logits_processor": processor}
    result = Generator(model, proposer=proposer_of(proposer, model.vocab_size)).generate(
        [3, 1], max_new_tokens=40, **settings
    )
    assert list(result.token_ids) == tokens[2:]
    # The last step may ask once more, for a token behind the length that is then cut.
    assert seen[:40] == [tokens[:length] for length in range(2, 42)]
    if proposer in {"lookahead", "prompt_lookup"}:
        assert result.stats.tokens_per_step > 1


def without(law: TokenDistribution, token: int) -> TokenDistribution:
    """The law with one token all but impossible."""
    return lambda context: [1e-300 if index == token else weight for index, weight in enumerate(law(context))]


def test_the_models_own_config_is_honoured_for_ids_and_the_first_result_says_what_it_leaves_out() -> None:
    model = toy()
    model.generation_config = GenerationConfig(eos_token_id=6, suppress_tokens=[0], temperature=0.5, do_sample=True)  # type: ignore[attr-defined]
    generator = Generator(model)
    first, second = (generator.generate([3], seed=1, max_new_tokens=60, temperature=1.0) for _ in range(2))
    assert first.notes == (
        "ignored in the model's generation config: do_sample=True, temperature=0.5; pass generation_config to apply it",
    )
    assert second.notes == ()
    expected = decode_law(without(model.probs, 0), [3], 60, seed=1)
    assert list(first.token_ids) == expected[: expected.index(6) + 1]
    assert first.finish_reason == "stop"


def test_what_the_caller_passes_goes_before_the_models_own_config() -> None:
    model = toy()
    model.generation_config = GenerationConfig(eos_token_id=6, suppress_tokens=[0])  # type: ignore[attr-defined]
    generator = Generator(model)
    free = generator.generate([3], seed=1, eos_token_id=(), suppress_tokens=(), **SAMPLED)
    assert list(free.token_ids) == decode_law(model.probs, [3], 20, seed=1)
    passed = generator.generate([3], seed=1, generation_config=GenerationConfig(suppress_tokens=[6]), **SAMPLED)
    assert list(passed.token_ids) == decode_law(without(model.probs, 6), [3], 20, seed=1)
    assert {0, 6} <= {*free.token_ids}


def test_text_without_special_tokens_is_given_where_there_is_a_tokenizer() -> None:
    model, ids = speller("the cat" + END)
    result = Generator(model, trained()).generate("the mat", max_new_tokens=len(ids), eos_token_id=())
    assert END in trained().decode(result.token_ids)
    assert result.text == trained().decode(result.token_ids, skip_special_tokens=True)


def test_it_shows_what_it_is_made_of() -> None:
    shown = repr(Generator(toy(), proposer="jacobi:n=3"))
    assert shown.startswith("Generator(ToyModel, proposer=JacobiProposer(n=3, ")
    assert shown.endswith("numerics='exact, bit-exact')")


class Tabled(Scripted):
    """A proposer that can't be compared: arrays have no single truth."""

    table: Any


def strategies_of(generator: Generator, proposer: Any) -> list[Strategy]:
    """The strategies with which the prompts of a list are decoded."""
    records = list[StepRecord]()
    generator.generate([[1]] * len(proposer), proposer=proposer, max_new_tokens=1, on_step=records.append)
    outcomes = [outcome for record in records for outcome in record.outcomes]
    return [outcome.request.strategy for outcome in sorted(outcomes, key=lambda outcome: outcome.request.index)]


def test_a_proposer_is_shared_by_its_name_or_as_the_same_object_and_not_by_what_it_equals_just_then() -> None:
    generator = Generator(toy(), proposer="jacobi:n=3")
    own, first, again = strategies_of(generator, ["jacobi:n=3", "lookahead", "lookahead"])
    assert own is generator._binding.strategies.own
    assert first is again is strategies_of(generator, ["lookahead"])[0]
    heard: list[list[tuple[str, int]]] = [[], []]
    equal = [Scripted(events=events) for events in heard]
    one, other, same = strategies_of(generator, [*equal, equal[1]])
    assert one is not other is same
    assert [len(events) for events in heard] == [2, 4]
    one, other = strategies_of(generator, [Tabled(table=np.zeros(3)), Tabled(table=np.zeros(3))])
    assert one is not other


@pytest.mark.parametrize("size", [0, -1, "3", 2.5])
def test_a_batch_size_that_is_no_positive_integer_is_refused(size: Any) -> None:
    with pytest.raises(RequestError, match=rf"max_batch_size={size!r}: it must be an integer of at least 1"):
        Generator(toy(), max_batch_size=size)


@pytest.mark.parametrize("size", [0, -1, "3", 2.5])
def test_a_memory_limit_that_is_no_positive_integer_is_refused(size: Any) -> None:
    with pytest.raises(RequestError, match=rf"max_cache_bytes={size!r}: it must be an integer of at least 1"):
        Generator(toy(), max_cache_bytes=size)


def test_a_callback_that_cannot_be_called_is_refused_before_anything_runs() -> None:
    given: Any = 5
    with pytest.raises(RequestError, match="on_step=5: give a function"):
        Generator(toy()).generate([1], on_step=given)


def test_a_result_shows_itself_in_a_line() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    shown = repr(generator.generate([0, 1], max_new_tokens=40))
    assert re.fullmatch(r"Result\(\[.{46,48}…, 40 tokens in 40 steps, [\d.]+ tokens/s, length\)", shown)
    (failed,) = generator.generate([[99]])
    assert repr(failed).startswith("Result([], error: the prompt's token 0 is 99")


@pytest.mark.parametrize("strategy", BUILT_IN)
@pytest.mark.parametrize("num_prompt", [10, 9, 6])
def test_the_last_token_takes_no_position(strategy: str, num_prompt: int) -> None:
    model = toy(max_positions=10)
    prompts, settings = [[1, 2, 3, 4, 5, 6, 7, 1, 2, 3][:num_prompt], [3, 1]], {"temperature": 1.0, "seed": 4}
    generator = Generator(model, proposer=proposer_of(strategy, VOCAB))
    results = generator.generate(prompts, max_new_tokens=11 - num_prompt, **settings)
    for result, prompt in zip(results, prompts, strict=True):
        assert list(result.token_ids) == decode_law(model.probs, prompt, 11 - num_prompt, seed=4)
    with pytest.raises(RequestError, match="would need 11 positions, but the model supports 10"):
        generator.generate(prompts[0], max_new_tokens=12 - num_prompt)


@pytest.mark.parametrize("strategy", ["prompt_lookup:min_ngram=1", "lookahead:N=4,W=5,G=5", "auto"])
@pytest.mark.parametrize("backend", ["hf", "static"])
def test_learned_positions_are_used_up_to_the_last(backend: str, strategy: str) -> None:
    kind, options = families.TREES["gpt2"][:2]
    model = families.make(kind, {**options, "n_positions": 32})
    ids = torch.arange(1, 33)[None] % 7 + 1
    for num_prompt in (32, 31, 27):
        given = {"max_new_tokens": 33 - num_prompt, "do_sample": False}
        prompt = ids[:, :num_prompt]
        own = model.generate(prompt, attention_mask=torch.ones_like(prompt), pad_token_id=0, **given)
        result = Generator(model, proposer=strategy, backend=backend).generate(prompt[0], **given)
        assert list(result.token_ids) == own[0, num_prompt:].tolist()
