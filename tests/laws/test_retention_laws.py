"""Whatever is reused, a strategy that reads prompts has seen each position once: now, or in what it has retained."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec import Engine, Generator, Proposer, ToyModel
from specdec.decoding.prefix_block import BLOCK
from specdec.strategies import MergedProposer, Retained, SuffixProposer
from tests.support.plain import decode_law
from tests.support.watching import BYTES, Counting, Watching, WatchingDrafter, assert_each_once


def random_text(rng: random.Random, most: int) -> list[int]:
    return [rng.randrange(5) for _ in range(rng.randint(1, most))]


def merged(watching: Proposer) -> Proposer:
    return MergedProposer([SuffixProposer(), watching])


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("chunk", [4, 256])
def test_after_each_turn_of_a_context_every_position_was_shown_once(chunk: int, is_merged: bool) -> None:
    model, seen, rng, num_reused = ToyModel.random(vocab_size=5), list[Any](), random.Random(chunk), 0
    strategies = [merged(each) if is_merged else each for each in (Watching(seen=seen), Watching(seen=seen, tag=1))]
    generator = Generator(model, proposer=strategies[0])
    backend = generator._binding.target.backend
    backend.shapes = replace(backend.shapes, chunk=chunk)
    for seed in range(16):
        text = random_text(rng, 20)
        with generator.context() as context:
            for _ in range(4):
                num_new, proposer = rng.randint(1, 12), strategies[rng.random() < 0.2]
                result = generator.generate(
                    text, proposer=proposer, max_new_tokens=num_new, temperature=1.0, seed=seed, context=context
                )
                assert list(result.token_ids) == decode_law(model.probs, text, num_new, seed)
                num_reused += result.stats.num_reused
                text = [*text, *result.token_ids]
                text = [*text[: rng.randint(1, len(text))], *random_text(rng, 6)]
    assert_each_once(seen)
    assert num_reused > 200


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_second_turn_reads_one_token_and_what_is_new(is_merged: bool) -> None:
    seen = list[Any]()
    watching = Watching(seen=seen)
    generator = Generator(ToyModel.random(vocab_size=5), proposer=merged(watching) if is_merged else watching)
    with generator.context() as context:
        first = generator.generate([1, 2, 3] * 9, max_new_tokens=20, context=context)
        text = [1, 2, 3] * 9 + list(first.token_ids)
        second = generator.generate([*text, 4, 4], max_new_tokens=5, context=context)
    assert second.stats.num_reused == len(text) - 2, "the row's last token is read again"
    assert_each_once(seen)


@pytest.mark.parametrize("is_merged", [False, True])
def test_after_a_shared_prefix_every_position_was_shown_once(is_merged: bool) -> None:
    seen, rng, num_reused = list[Any](), random.Random(1), 0
    watching = Watching(seen=seen)
    strategy = merged(watching) if is_merged else watching
    generator = Generator(ToyModel.random(vocab_size=5), proposer="autoregressive")
    begun = [index * 7 % 5 for index in range(BLOCK)]
    shared = [[*begun, *(index * step % 5 for index in range(1, 2 * BLOCK))] for step in (1, 2, 3)]  # one first block
    with generator.open_batch(max_batch_size=2, max_prefix_bytes=1 << 20) as batch:
        for _ in range(14):
            handles = list[Any]()
            for _ in range(rng.randint(1, 3)):
                proposer = rng.choice([strategy, strategy, None])  # others fill the cache too
                text = rng.choice(shared)
                prompt = [*text[: rng.choice([rng.randint(1, len(text)), len(text)])], 4, 4]
                handles += batch.add(prompt, proposer=proposer, max_new_tokens=4)
            while batch.advance() is not None:
                pass
            assert [handle.error for handle in handles] == [None] * len(handles)
            num_reused += sum(handle.stats.num_reused for handle in handles)
    assert_each_once(seen)
    assert num_reused > 6 * BLOCK


def served(batch: Any, prompt: list[int], proposer: Proposer | None = None) -> int:
    """Decode a prompt; the number of its positions that were reused."""
    (handle,) = batch.add(prompt, proposer=proposer, max_new_tokens=2)
    while batch.advance() is not None:
        pass
    assert handle.error is None
    return int(handle.stats.num_reused)


def test_blocks_are_reused_by_a_strategy_that_has_state_about_them() -> None:
    seen = list[Any]()
    one, other = Watching(seen=seen), Watching(seen=seen, tag=1)
    generator = Generator(ToyModel.random(vocab_size=5), proposer="autoregressive")
    prompt = [index * 3 % 5 for index in range(2 * BLOCK + 4)]
    with generator.open_batch(max_prefix_bytes=1 << 20) as batch:
        assert served(batch, prompt) == 0
        assert served(batch, prompt) == 2 * BLOCK
        assert [served(batch, prompt, one) for _ in range(2)] == [0, 2 * BLOCK - 1]
        assert [served(batch, prompt, other) for _ in range(2)] == [0, 2 * BLOCK - 1]
        assert served(batch, prompt, one) == 2 * BLOCK - 1
    assert_each_once(seen)


def test_states_are_in_the_prefix_caches_account() -> None:
    seen = list[Any]()
    watching = Watching(seen=seen)
    generator = Generator(ToyModel.random(vocab_size=5), proposer=watching)
    block, room = 8 * BLOCK, 8 * BLOCK + BYTES * BLOCK  # keys of the toy are eight bytes
    with generator.open_batch(max_prefix_bytes=3 * room) as batch:
        for first in range(6):
            served(batch, [first % 5, first // 5] + [1] * (2 * BLOCK))
            assert block < batch.prefix_cache.num_bytes <= 3 * room
        cached = list(batch.prefix_cache._blocks.values())
        assert batch.prefix_cache.num_bytes == sum(
            each.held.num_bytes + sum(state.num_bytes for state in each.states.values()) for each in cached
        )
    assert_each_once(seen)


def test_states_of_contexts_are_in_the_account_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second context's request finds no room beside the first one's state, so the first row is dropped."""
    seen = list[Any]()
    generator = Generator(ToyModel.random(vocab_size=5), proposer=Watching(seen=seen), max_cache_bytes=2000)
    monkeypatch.setattr(type(generator._binding.target.backend), "cache_bytes", lambda _, capacities: len(capacities))
    with generator.context() as short, generator.context() as long:
        generator.generate([1, 2, 3], max_new_tokens=4, context=short)
        generator.generate([2, 3], max_new_tokens=4, context=long)
        assert (short.row is None, long.row is None) == (False, False)
        generator.generate([1, 2, 3] * 9, max_new_tokens=4, context=long)
        generator.generate([4], max_new_tokens=4)
        assert (short.row is None, long.row is None) == (True, True)
    assert_each_once(seen)


def test_state_goes_with_the_model_that_it_was_made_for() -> None:
    torch.manual_seed(0)
    from tests.support import families

    seen, model = list[Any](), families.make(*families.TREES["llama"])
    generator = Generator(model, proposer=Counting(seen=seen))
    with generator.context() as context:
        text = [5, 9, 2, 7, 1, 8]
        text += generator.generate(text, max_new_tokens=6, context=context).token_ids
        assert generator.generate([*text, 3], max_new_tokens=6, context=context).stats.num_reused > 6
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
        assert generator.generate([*text, 4], max_new_tokens=6, context=context).stats.num_reused == 0
    assert_each_once(seen)


class Failing(Watching):
    def bind(self, host: object) -> Engine:
        return Engine(lambda request: _Failing(request, self))


class _Failing(WatchingDrafter):
    def retain(self, start: int, stop: int) -> Retained | None:
        raise ZeroDivisionError("by nought")


def test_a_drafter_that_fails_to_retain_is_named_and_the_text_stands() -> None:
    model = ToyModel.random(vocab_size=5)
    generator = Generator(model, proposer=Failing(seen=[]))
    with generator.context() as context:
        with pytest.warns(UserWarning, match="proposer Failing failed with ZeroDivisionError: by nought"):
            result = generator.generate([1, 2, 3], max_new_tokens=6, context=context)
        assert list(result.token_ids) == decode_law(model.probs, [1, 2, 3], 6, None)
        assert context.row is not None
        assert not context.states
