"""Kept prefixes: what requests share is read once, the text is that from scratch, and memory stays in its bound."""

import random
from typing import Any

import pytest
from transformers.models.gemma3n import Gemma3nForCausalLM, Gemma3nTextConfig

from specdec import Generator, ToyModel
from specdec.backends.base import KVBlock
from specdec.decoding.prefix_block import BLOCK
from specdec.decoding.prefix_cache import PrefixCache
from specdec.runtime.open_batch import OpenBatch
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.prompt_lookup import PromptLookupProposer
from specdec.target import CacheRow, Target
from tests.support import families

STRATEGIES = AutoregressiveProposer(), PromptLookupProposer()


def decode(batch: OpenBatch, prompts: list[list[int]], **settings: Any) -> list[tuple[list[int], int]]:
    """The new tokens of each prompt, and how many of its own were copied."""
    handles = [
        handle
        for number, prompt in enumerate(prompts)
        for handle in batch.add(prompt, proposer=STRATEGIES[number % 2], **settings)
    ]
    while batch.advance() is not None:
        pass
    assert not any(isinstance(handle, Exception) for handle in handles)
    return [(handle.new_tokens, handle.stats.num_reused) for handle in handles]  # type: ignore[union-attr]


def random_text(rng: random.Random, vocab: int, length: int) -> list[int]:
    return [rng.randrange(vocab) for _ in range(length)]


@pytest.mark.parametrize("name", ["toy", "llama", "gemma2", "gpt2"])
def test_text_behind_kept_prefixes_is_the_text_from_scratch(name: str) -> None:
    model = ToyModel.random() if name == "toy" else families.make(*{**families.TREES, **families.CHAINS}[name][:2])
    numerics: Any = "auto" if name == "toy" else "exact"
    kept, fresh = (Generator(model, proposer="autoregressive", numerics=numerics) for _ in range(2))
    rng, vocab = random.Random(5), kept.shapes.vocab_size
    shared, num_reused = [random_text(rng, vocab, 2 * BLOCK + 3) for _ in range(2)], 0
    with kept.open_batch(max_prefix_bytes=1 << 20) as batch:
        for _ in range(8):
            prompts = [
                (rng.choice(shared)[: rng.randint(BLOCK, 2 * BLOCK + 3)] + random_text(rng, vocab, rng.randint(1, 6)))
                for _ in range(rng.randint(1, 4))
            ]
            for prompt, (tokens, copied) in zip(prompts, decode(batch, prompts, max_new_tokens=6), strict=True):
                assert tokens == list(fresh.generate(prompt, max_new_tokens=6).token_ids)
                num_reused += copied
    assert num_reused > 4 * BLOCK


def test_requests_side_by_side_share_what_the_first_has_read() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    system = [0, 1, 2, 3] * BLOCK
    with generator.open_batch(max_batch_size=4, max_prefix_bytes=1 << 20) as batch:
        copied = [count for _, count in decode(batch, [[*system, token] for token in range(4)], max_new_tokens=3)]
    assert copied == [0, len(system), len(system), len(system)]


def test_an_answer_is_kept_for_the_next_turn() -> None:
    generator, prompt = Generator(ToyModel.random(), proposer="autoregressive"), [0, 1, 2] * 20
    with generator.open_batch(max_prefix_bytes=1 << 20) as batch:
        ((answer, _),) = decode(batch, [prompt], max_new_tokens=50)
        ((_, copied),) = decode(batch, [[*prompt, *answer, 3]], max_new_tokens=2)
    assert copied == (len(prompt) + len(answer) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize(("name", "num_tokens"), [("nemotron_h", 30), *(("qwen3_next", each) for each in (30, 45))])
def test_the_next_turn_continues_from_a_kept_state(name: str, num_tokens: int) -> None:
    model, prompt = families.make(*families.STATES[name]), random_text(random.Random(2), families.VOCAB, 80)
    fed = list[int]()
    model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].numel()))
    kept, fresh = (Generator(model, proposer="autoregressive") for _ in range(2))
    settings: dict[str, Any] = {"max_new_tokens": num_tokens, "eos_token_id": ()}
    with kept.open_batch(max_prefix_bytes=1 << 24) as batch:
        ((answer, _),) = decode(batch, [prompt], **settings)
        following = [*prompt, *answer, 5, 7, 3]
        del fed[:]
        ((tokens, copied),) = decode(batch, [following], **settings)
        num_read = max(fed)
        # Another text from the middle of the first: its blocks have no state before its end.
        ((_, none),) = decode(batch, [prompt[:40]], **settings)
    assert tokens == list(fresh.generate(following, **settings).token_ids)
    assert (copied, none) == (96, 0)
    assert num_read == len(following) - 80  # from the last checkpoint before


def test_each_turn_of_a_chat_is_the_text_from_scratch_where_time_steps_are_limited_in_prompts() -> None:
    model, settings = families.make(*families.STATES["nemotron_h"]), {"eos_token_id": ()}
    kept, fresh = (Generator(model, proposer="autoregressive") for _ in range(2))
    for seed in (3, 4):  # with other seeds the text seldom changes if states after generated tokens are reused
        rng, text, num_reused = random.Random(seed), list[int](), list[int]()
        with kept.open_batch(max_prefix_bytes=1 << 24) as batch:
            for num_added, num_tokens in ((20, 80), (25, 20), (5, 30)):
                text += random_text(rng, families.VOCAB, num_added)
                ((tokens, copied),) = decode(batch, [text], max_new_tokens=num_tokens, **settings)
                assert tokens == list(fresh.generate(text, max_new_tokens=num_tokens, **settings).token_ids)
                text += tokens
                num_reused.append(copied)
        assert num_reused == [0, BLOCK, 4 * BLOCK]


def test_a_block_that_is_known_gets_a_state_that_a_later_row_has() -> None:
    generator = Generator(families.make(*families.STATES["qwen3_next"]), proposer="autoregressive")
    shared = random_text(random.Random(3), families.VOCAB, 2 * BLOCK)
    with generator.open_batch(max_prefix_bytes=1 << 24) as batch:
        texts = [[*shared, *shared[:BLOCK]], shared, [*shared, 5, 7, 3]]
        copied = [decode(batch, [text], max_new_tokens=2, eos_token_id=())[0][1] for text in texts]
    assert copied == [0, 0, 2 * BLOCK]


def test_blocks_of_different_sizes_fill_the_bound_and_those_without_a_state_at_their_end_are_not_kept() -> None:
    generator = Generator(families.make(*families.STATES["qwen3_next"]), proposer="autoregressive")
    prompt, copied = random_text(random.Random(2), families.VOCAB, 3 * BLOCK), list[int]()
    max_bytes = 1 << 24
    for _ in range(2):
        with generator.open_batch(max_prefix_bytes=max_bytes) as batch:
            copied += [decode(batch, [text], max_new_tokens=2)[0][1] for text in (prompt, [*prompt, 5])]
            max_bytes = batch.prefix_cache.num_bytes
            decode(batch, [random_text(random.Random(4), families.VOCAB, BLOCK + 8)], max_new_tokens=2)
            assert batch.prefix_cache.num_bytes == max_bytes
    assert copied == [0, 3 * BLOCK] * 2


def test_the_least_recently_used_goes_and_the_bound_holds() -> None:
    generator = Generator(ToyModel.random(), proposer="autoregressive")
    texts = [[first] + [1] * BLOCK * 2 for first in range(4)]
    block_bytes = 8 * BLOCK  # the toy's tokens, as 64-bit integers
    with generator.open_batch(max_prefix_bytes=block_bytes * 6) as batch:
        for text in (*texts[:3], texts[0], texts[3]):
            decode(batch, [text], max_new_tokens=1)
            assert batch.prefix_cache.num_bytes <= block_bytes * 6
        assert batch.prefix_cache.num_bytes == block_bytes * 6
        again = [decode(batch, [text], max_new_tokens=1)[0][1] for text in (texts[0], texts[2], texts[1])]
    assert again == [2 * BLOCK, 2 * BLOCK, 0]


def test_nothing_is_kept_unless_asked_for_or_by_a_backend_that_cant() -> None:
    generator, prompt = Generator(ToyModel.random(), proposer="autoregressive"), [0, 1, 2] * 50
    with generator.open_batch() as batch:
        assert [decode(batch, [prompt], max_new_tokens=2)[0][1] for _ in range(2)] == [0, 0]
    target = generator.open_target()
    type(target.backend).holds_prefixes = False
    try:
        with generator.open_batch(max_prefix_bytes=1 << 20) as batch:
            assert [decode(batch, [prompt], max_new_tokens=2)[0][1] for _ in range(2)] == [0, 0]
            cache = PrefixCache(target)
            cache.resize(1 << 20)
            assert cache._max_bytes == 0
    finally:
        type(target.backend).holds_prefixes = True
        target.close()
    assert [generator.generate(prompt, max_new_tokens=2).stats.num_reused for _ in range(2)] == [0, 0]


def test_layers_that_read_anothers_keys_are_copied_as_well() -> None:
    config = Gemma3nTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_kv_shared_layers=2, vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8, layer_types=["sliding_attention", "full_attention"] * 3, laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 6, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    generator = Generator(Gemma3nForCausalLM(config).eval(), proposer="autoregressive", numerics="fast")
    prompt = [5, 6, 7, 8] * 20
    with generator.open_batch(max_prefix_bytes=1 << 24) as batch:
        (first, _), (again, copied) = (decode(batch, [prompt], max_new_tokens=3)[0] for _ in range(2))
    assert again == first
    assert copied == 2 * BLOCK


def test_more_than_the_bound_is_never_held_and_a_long_text_keeps_its_beginning() -> None:
    generator, most = Generator(ToyModel.random(), proposer="autoregressive"), 0
    block_bytes, copy_block = 8 * BLOCK, Target.copy_block

    def counting(target: Target, row: CacheRow, start: int, stop: int) -> KVBlock:
        nonlocal most
        most = max(most, batch.prefix_cache.num_bytes + block_bytes)
        return copy_block(target, row, start, stop)

    with pytest.MonkeyPatch.context() as patched, generator.open_batch(max_prefix_bytes=block_bytes * 4) as batch:
        patched.setattr(Target, "copy_block", counting)
        text = [0, 1, 2, 3] * (BLOCK * 3)
        decode(batch, [text], max_new_tokens=1)
        assert most <= block_bytes * 5, "one beyond the bound is looked at, and not kept"
        assert decode(batch, [text], max_new_tokens=1)[0][1] == 4 * BLOCK


@pytest.mark.parametrize("broken", ["copy_block", "append_blocks"])
def test_copies_that_fail_cost_no_request(broken: str) -> None:
    generator, prompt = Generator(ToyModel.random(), proposer="autoregressive"), [0, 1, 2] * 30
    expected = list(generator.generate(prompt, max_new_tokens=4).token_ids)

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    with generator.open_batch(max_prefix_bytes=1 << 20) as batch:
        assert decode(batch, [prompt], max_new_tokens=4) == [(expected, 0)]
        other = [*prompt[::-1], *prompt]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Target, broken, fail)
            with pytest.warns(UserWarning, match="the prefix cache is disabled"):
                decode(batch, [other if broken == "copy_block" else prompt], max_new_tokens=4)
        assert batch.prefix_cache.num_bytes == 0
        assert decode(batch, [prompt], max_new_tokens=4) == [(expected, 0)]
