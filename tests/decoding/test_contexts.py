"""Kept contexts: text that goes on from one is the text from scratch, and rows are held no longer than they may be."""

import itertools
import random
from typing import Any

import pytest
import torch

from specdec import Generator, PluginError, RequestError, ToyModel
from specdec.decoding.context import Context
from specdec.decoding.prefix_cache import _MAX_ROWS
from specdec.record import StepRecord
from tests.support import families

STRATEGIES = ["autoregressive", "prompt_lookup:num_tokens=4", "lookahead:N=3,W=3,G=3", "jacobi:n=4", "auto"]


def rows_of(generator: Generator) -> int:
    return len(generator._binding.target.rows)


def next_prompt(rng: random.Random, text: list[int], vocab: int) -> list[int]:
    """Mostly the text and a new turn; now and then an earlier part of it, another beginning, or the same again."""
    said = [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
    kind = rng.random()
    if kind < 0.7:
        return text + said
    if kind < 0.85:
        return text[: rng.randint(1, len(text))] + said
    return said if kind < 0.95 else text


def conversations(kept: Generator, fresh: Generator, vocab: int, num_conversations: int) -> int:
    """Hold conversations with kept contexts against the same from scratch; the tokens that weren't computed again."""
    rng, num_reused = random.Random(3), 0
    ways = itertools.cycle(itertools.product(STRATEGIES, (0.0, 1.0)))
    for _ in range(num_conversations):
        with kept.context() as context:
            text = [rng.randrange(vocab)]
            for _ in range(rng.randint(2, 5)):
                prompt, (proposer, temperature) = next_prompt(rng, text, vocab)[-120:], next(ways)
                settings = {
                    "proposer": proposer,
                    "temperature": temperature,
                    "seed": rng.randrange(100),
                    "max_new_tokens": rng.randint(1, 14),
                }
                result = kept.generate(prompt, context=context, **settings)
                assert result.token_ids == fresh.generate(prompt, **settings).token_ids
                text = [*prompt, *result.token_ids]
                num_reused += result.stats.num_reused
        assert rows_of(kept) == 0
    return num_reused


def test_text_with_kept_contexts_is_the_text_from_scratch() -> None:
    kept, fresh = (Generator(ToyModel.random(), proposer="autoregressive") for _ in range(2))
    assert conversations(kept, fresh, kept.shapes.vocab_size, 30) > 300


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bloom"])
def test_the_same_with_models_of_transformers(name: str) -> None:
    model = families.make(*{**families.TREES, **families.CHAINS}[name][:2])
    numerics: Any = "fast" if name == "bloom" else "exact"
    kept, fresh = (Generator(model, proposer="autoregressive", numerics=numerics) for _ in range(2))
    assert conversations(kept, fresh, families.VOCAB, 6) > 50


def test_only_what_is_new_is_read() -> None:
    generator, read = Generator(ToyModel.random(), proposer="autoregressive"), list[int]()

    def note(record: StepRecord) -> None:
        if record.kind in ("chunk", "prompt"):
            read.append(record.width)

    prompt = [0, 1, 2] * 40
    with generator.context() as context:
        first = generator.generate(prompt, context=context, max_new_tokens=8)
        assert len(context.tokens) == len(prompt) + 7
        del read[:]
        text = [*prompt, *first.token_ids]
        again = generator.generate([*text, 1, 2], context=context, max_new_tokens=4, on_step=note)
    assert again.stats.num_reused == len(text) - 1
    assert sum(read) == 3
    assert first.stats.num_reused == 0


def test_prompts_side_by_side_have_contexts_of_their_own() -> None:
    kept, fresh = (Generator(ToyModel.random(), proposer="prompt_lookup") for _ in range(2))
    prompts = [[0, 1, 2], [3, 1], [2, 2, 2, 2]]
    contexts = [kept.context(), None, kept.context()]
    for _ in range(3):
        results = kept.generate(prompts, context=contexts, max_new_tokens=9)
        alone = [fresh.generate(prompt, max_new_tokens=9) for prompt in prompts]
        assert [result.token_ids for result in results] == [result.token_ids for result in alone]
        assert rows_of(kept) == 2
        prompts = [[*prompt, *result.token_ids, 1] for prompt, result in zip(prompts, results, strict=True)]
    assert results[0].stats.num_reused > 15
    assert results[1].stats.num_reused == 0
    with pytest.raises(RequestError, match="a single context was given for several prompts"):
        kept.generate(prompts, context=contexts[0], max_new_tokens=2)
    with pytest.raises(RequestError, match="2 contexts were given for 3 prompts"):
        kept.generate(prompts, context=contexts[:2], max_new_tokens=2)


def test_an_answer_that_is_stopped_is_gone_on_from() -> None:
    kept, fresh = (Generator(ToyModel.random(), proposer="prompt_lookup") for _ in range(2))
    context, written = kept.context(), list[int]()
    stream = kept.stream([0, 1, 2], context=context, max_new_tokens=50)
    for chunk in stream:
        written += chunk.token_ids
        if len(written) > 6:
            break
    stream.close()  # type: ignore[attr-defined]  # an iterator that is a generator
    prompt = [0, 1, 2, *written, 3]
    result = kept.generate(prompt, context=context, max_new_tokens=9)
    assert result.stats.num_reused >= len(prompt) - 3
    assert result.token_ids == fresh.generate(prompt, max_new_tokens=9).token_ids


def test_where_room_is_needed_the_least_recently_used_loses_its_row() -> None:
    model = families.make(*families.TREES["llama"])
    generator = Generator(model, proposer="autoregressive", numerics="exact", max_batch_size=1)
    contexts = [generator.context() for _ in range(3)]
    for number, context in enumerate(contexts):
        generator.generate([number, 1, 2], context=context, max_new_tokens=4)
    assert rows_of(generator) == 3
    held = generator._binding.target.backend.cache_bytes(())
    generator._max_cache_bytes = held
    result = generator.generate([5, 1, 2] * 30, max_new_tokens=100)
    assert not contexts[0].tokens
    assert result.token_ids == Generator(model, numerics="exact").generate([5, 1, 2] * 30, max_new_tokens=100).token_ids


def test_a_context_is_its_generators_own() -> None:
    own, other = (Generator(ToyModel.random(), proposer="autoregressive") for _ in range(2))
    with pytest.raises(RequestError, match="a context of another generator"):
        other.generate([0, 1], context=own.context())


def test_a_row_that_cant_be_cut_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    context = generator.context()
    generator.generate([0, 1], context=context, max_new_tokens=4)

    def broken(row: int, length: int) -> None:
        raise OSError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(generator._binding.target.backend, "rollback", broken)
        with pytest.raises(PluginError, match="broken"):
            generator.generate([0, 1, 2], context=context, max_new_tokens=3)
    assert rows_of(generator) == 0
    assert generator.generate([0, 1, 2], context=context, max_new_tokens=3).stats.num_reused == 0


def test_few_rows_wait() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    contexts = [generator.context() for _ in range(_MAX_ROWS + 2)]
    for context in contexts:
        generator.generate([0, 1], context=context, max_new_tokens=2)
    assert rows_of(generator) == _MAX_ROWS
    assert [bool(context.tokens) for context in contexts[:4]] == [False, False, True, True]
    generator.close()
    assert not any(context.tokens for context in contexts)


def test_a_request_that_fails_leaves_no_row() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    context = generator.context()

    def broken(*_: Any) -> bool:
        raise OSError("broken")

    generator.generate([0, 1], context=context, max_new_tokens=3)
    with pytest.raises(Exception, match="broken"):
        generator.generate([0, 1, 2], context=context, max_new_tokens=3, stopping_criteria=[broken])
    assert rows_of(generator) == 0
    assert generator.generate([0, 1, 2], context=context, max_new_tokens=3).stats.num_reused == 0


def test_a_context_that_is_closed_while_its_request_decodes_is_left_empty() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    context = generator.context()
    stream = generator.stream([0, 1], context=context, max_new_tokens=5)
    next(stream)
    context.close()
    assert sum(len(chunk.token_ids) for chunk in stream) == 4
    assert rows_of(generator) == 0
    assert isinstance(context, Context)
    assert repr(context) == "Context(0 tokens)"


def test_a_model_that_changes_empties_its_contexts() -> None:
    model = families.make(*families.TREES["llama"])
    generator = Generator(model, proposer="autoregressive", numerics="fast")
    context = generator.context()
    generator.generate([0, 1, 2], context=context, max_new_tokens=3)
    model.to(torch.float64)
    result = generator.generate([0, 1, 2, 3], context=context, max_new_tokens=3)
    assert result.stats.num_reused == 0
    assert rows_of(generator) == 1
