"""The built-in model is what its card says, and the text it writes is realistic rather than a loop."""

from collections import Counter
from hashlib import sha256
from importlib.resources import files
from typing import Any

import pytest

from specdec import Generator, demo
from specdec.apps.comparison import ComparisonSession
from specdec.requests.prompts import encode
from training.measures import distinct_4_grams, loops

NUM_TOKENS = 256


def test_the_measures_tell_loops_from_text() -> None:
    assert loops([9, *range(64), *range(64), *range(64), 3])
    assert loops([1, 2, 3, 3, 3])
    assert not loops([*range(65)] * 3)
    assert not loops([1, 2, 1, 2, 3])
    assert distinct_4_grams([1] * 7) == 0.25


@pytest.mark.nightly  # it changes with the model alone
def test_greedy_text_is_realistic(built_in: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    prompts = demo.prompts()[::2]  # three of each category
    # Beyond its end-of-text a model trained document by document starts another one, so that 256 tokens can be had.
    generator = Generator(*built_in, proposer="prompt_lookup", max_batch_size=8)
    results = generator.generate([prompt.request for prompt in prompts], max_new_tokens=NUM_TOKENS, eos_token_id=())
    num_good = 0
    with capsys.disabled():
        print()
        for prompt, result in zip(prompts, results, strict=True):
            tokens = list(result.token_ids)
            assert len(tokens) == NUM_TOKENS
            share, is_loop = distinct_4_grams(tokens), loops(tokens)
            num_good += share >= 0.7 and not is_loop
            print(f"{prompt.category:14} {prompt.name:32} distinct 4-grams {share:.2f}{'  loops' if is_loop else ''}")
    assert num_good >= 10


def test_there_are_six_prompts_of_each_of_four_categories() -> None:
    counts = Counter(prompt.category for prompt in demo.prompts())
    assert counts == {"code": 6, "documentation": 6, "dialogue": 6, "arithmetic": 6}


def test_the_model_reads_its_prompts_as_it_was_trained_on_them(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    shown = [
        f"<|user|>\n{prompt.text}<|end|>\n<|assistant|>\n" if prompt.category == "dialogue" else prompt.text
        for prompt in demo.prompts()
    ]
    # of the texts that the model card's figures were measured on
    assert sha256("\0".join(shown).encode()).hexdigest()[:16] == "9ce6a5f1b88acdd6"
    plan = ComparisonSession(model, {}, tokenizer=tokenizer).plan
    assert [list(ids) for _, _, ids in plan.prompts] == [tokenizer(text)["input_ids"] for text in shown]
    assert [encode(prompt.request, tokenizer, len(tokenizer)) for prompt in demo.prompts()] == tokenizer(shown)[
        "input_ids"
    ]


def test_the_model_is_as_large_as_it_says(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    config = model.config
    assert model.num_parameters() >= 5_000_000
    assert config.num_hidden_layers >= 4
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.max_position_embeddings >= 8448
    assert len(tokenizer) <= config.vocab_size
    folder = files("specdec.demo") / "model"
    assert sum(len((folder / name.name).read_bytes()) for name in folder.iterdir()) <= 20 * 2**20


def test_chat_goes_through_the_template(built_in: tuple[Any, Any]) -> None:
    _, tokenizer = built_in
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|endoftext|><|user|>\nHello<|end|>\n<|assistant|>\n"
    generator = Generator(*built_in)
    by_messages = generator.generate([{"role": "user", "content": "Hello"}], max_new_tokens=8)
    by_ids = generator.generate(tokenizer(text, add_special_tokens=False)["input_ids"], max_new_tokens=8)
    assert by_messages.token_ids == by_ids.token_ids
