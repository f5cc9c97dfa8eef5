"""Kept prefixes and contexts of prompts with images and audio: reused with the same inputs, never with others."""

import random
from typing import Any

import pytest

from specdec import Generator
from specdec.inputs.processor import ProcessedPrompt, ProcessorOutput
from tests.support import multimodal
from tests.support.watching import Counting

NAMES = "llava", "qwen2_vl", "ernie4_5_vl", "gemma3", "gemma4", "voxtral", "qwen3_5"
SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": []}
BLOCK = 32  # tokens
STATES = {"qwen3_5"}  # go on at few places


def text(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 80) for _ in range(length)]


def given(name: str, *parts: Any) -> list[ProcessedPrompt]:
    return ProcessorOutput(multimodal.compose(name, *parts)).prompts()


def place_of(name: str, *parts: Any) -> int:
    """The place of the first placeholder, of an image behind parts that have none."""
    ids = multimodal.compose(name, *parts, 5)["input_ids"][0].tolist()
    return ids.index(multimodal.IMAGE)


def own(model: Any, name: str, *parts: Any) -> list[int]:
    inputs = multimodal.compose(name, *parts)
    found = model.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
    return found[0, inputs["input_ids"].shape[1] :].tolist()


def decoded(batch: Any, prompt: list[ProcessedPrompt], **settings: Any) -> tuple[list[int], int]:
    [handle] = batch.add(prompt, **SETTINGS, **settings)
    while batch.advance() is not None:
        pass
    assert not isinstance(handle, Exception), handle
    assert handle.error is None
    return handle.new_tokens, handle.stats.num_reused


@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_is_reused_with_the_same_images_only(name: str) -> None:
    model = multimodal.make(name)
    before, after = text(1, 40), text(2, 70)
    length = multimodal.compose(name, before, 5, after)["input_ids"].shape[1]
    generator = Generator(model, proposer="autoregressive", numerics="fast")
    with generator.open_batch(max_prefix_bytes=1 << 24) as batch:
        for number, (seed, end) in enumerate([(5, text(3, 4)), (5, text(4, 5)), (6, text(4, 5)), (5, text(3, 4))]):
            tokens, reused = decoded(batch, given(name, before, seed, after, end))
            assert tokens == own(model, name, before, seed, after, end)
            if number == 0:
                assert reused == 0
            elif seed == 6:
                assert reused <= place_of(name, before)
            elif name not in STATES:
                assert reused > length - BLOCK


@pytest.mark.parametrize("name", NAMES)
def test_a_conversations_images_are_read_once_and_again_when_one_changes(name: str) -> None:
    model = multimodal.make(name)
    generator = Generator(model, proposer="prompt_lookup:num_tokens=4", numerics="fast")
    with generator.context() as context:
        parts: list[Any] = [text(1, 10), 5, text(2, 12)]
        for turn in range(3):
            [result] = generator.generate(given(name, *parts), context=[context], **SETTINGS)
            assert result.error is None, result.error
            assert list(result.token_ids) == own(model, name, *parts)
            assert (result.stats.num_reused > 20) == (turn > 0)
            said = [token for token in result.token_ids if token < 80]  # others stand for images
            parts += [said, text(10 + turn, 5)]
        parts[1] = 6
        [result] = generator.generate(given(name, *parts), context=[context], **SETTINGS)
        assert result.error is None, result.error
        assert list(result.token_ids) == own(model, name, *parts)
        assert result.stats.num_reused <= place_of(name, *parts)


@pytest.mark.parametrize(
    ("reads_prompts", "name"),
    [
        (True, "qwen2_vl"),
        (False, "gemma3"),
        (False, "voxtral"),
        pytest.param(False, "qwen2_vl", marks=pytest.mark.nightly),
        pytest.param(True, "gemma3", marks=pytest.mark.nightly),
        pytest.param(True, "voxtral", marks=pytest.mark.nightly),
    ],
)
def test_reading_begins_again_anywhere_but_within_a_recording(name: str, reads_prompts: bool) -> None:
    """An image's or a recording's last token is at each place around the end of a block."""
    model = multimodal.make(name)
    length = multimodal.compose(name, 5)["input_ids"].shape[1]
    strategy = Counting(seen=[]) if reads_prompts else "prompt_lookup:num_tokens=4"
    with Generator(model, proposer=strategy, numerics="fast") as generator:
        for before in range(2 * BLOCK - length - 2, 2 * BLOCK + 1):
            with generator.open_batch(max_prefix_bytes=1 << 24) as batch:
                for end in (text(3, 40), text(4, 40)):
                    tokens, reused = decoded(batch, given(name, text(1, before), 5, end))
                    assert tokens == own(model, name, text(1, before), 5, end)
                assert reused >= BLOCK - 1
