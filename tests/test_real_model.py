"""On a real model every strategy says what plain decoding says, and what it says makes sense; skipped without it."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec import Generator
from specdec.demo import smollm2 as real
from specdec.machine.facts import computes_in_bfloat16
from tests.support.plain import decode_model

CAPITAL = "What is the capital of France?"
PROMPTS = (  # a short answer, a copy, a loop
    CAPITAL,
    "Repeat this list three times: apples, pears, plums, cherries.",
    "Extract the names from this text as a list: Anna met Boris in Prague, where Clara and David were waiting.",
)
LOOKAHEAD = "lookahead:N=4,W=5,G=5"
NUM_TOKENS = 16
SEED = 20
END = 2  # <|im_end|>

Load = Callable[[str], tuple[Any, Any]]


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def template(text: str) -> str:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def greedy(smollm2: Load) -> list[list[int]]:
    """Plain decoding of the prompts."""
    model, tokenizer = smollm2("float32")
    return [
        decode_model(model, tokenizer(template(text))["input_ids"], NUM_TOKENS, None, eos=(END,)) for text in PROMPTS
    ]


@pytest.fixture(scope="module")
def sampled(smollm2: Load) -> list[int]:
    """Plain decoding of the last prompt at temperature 1."""
    model, tokenizer = smollm2("float32")
    return decode_model(model, tokenizer(template(PROMPTS[-1]))["input_ids"], NUM_TOKENS, SEED, eos=(END,))


@pytest.mark.parametrize("proposer", [LOOKAHEAD, pytest.param("prompt_lookup", marks=pytest.mark.nightly)])
def test_greedy_text_is_plain_decodings_in_fewer_steps(smollm2: Load, greedy: list[list[int]], proposer: str) -> None:
    generator = Generator(*smollm2("float32"), proposer=proposer)
    results = [generator.generate(chat(text), max_new_tokens=NUM_TOKENS) for text in PROMPTS]
    assert [list(result.token_ids) for result in results] == greedy
    assert sum(result.stats.steps for result in results) < 0.7 * sum(map(len, greedy))


def test_sampled_text_is_plain_decodings_with_that_seed(smollm2: Load, sampled: list[int]) -> None:
    generator = Generator(*smollm2("float32"), proposer=LOOKAHEAD)
    result = generator.generate(chat(PROMPTS[-1]), max_new_tokens=NUM_TOKENS, temperature=1.0, seed=SEED)
    assert list(result.token_ids) == sampled


def test_the_tokenizers_template_is_what_a_conversation_goes_through(smollm2: Load) -> None:
    _, tokenizer = smollm2("float32")
    encoded = tokenizer.apply_chat_template(chat(CAPITAL), add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode(encoded) == template(CAPITAL)
    assert encoded == tokenizer(template(CAPITAL))["input_ids"]
    assert encoded.count(1) == 3  # <|im_start|> is one token


def test_it_knows_the_capital_of_france_and_stops_there(smollm2: Load) -> None:
    generator = Generator(*smollm2("float32"), proposer="prompt_lookup")
    result = generator.generate(chat(CAPITAL), max_new_tokens=NUM_TOKENS)
    assert "Paris" in result.text
    assert (result.finish_reason, result.token_ids[-1]) == ("stop", END)


def test_the_bfloat16_model_is_the_float32_one_rounded(smollm2: Load) -> None:
    whole, rounded = (smollm2(dtype)[0] for dtype in ("float32", "bfloat16"))
    assert (whole.dtype, rounded.dtype) == (torch.float32, torch.bfloat16)
    assert whole.num_parameters() == rounded.num_parameters() == 134_515_008
    values = dict(rounded.named_parameters())
    assert all(torch.equal(value.bfloat16(), values[name]) for name, value in whole.named_parameters())


def test_what_is_there_is_not_fetched_again(
    smollm2_in_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(subprocess, "run")
    real.main()
    assert capsys.readouterr().out == f"SmolLM2-135M-Instruct is in {smollm2_in_cache}\n"


@pytest.mark.usefixtures("smollm2_in_cache")
def test_the_model_is_opened_by_its_name_with_default_settings() -> None:
    with Generator("smollm2", dtype="float32") as generator:
        assert "Paris" in generator.generate(chat(CAPITAL), max_new_tokens=8).text
        prompts: list[Any] = ["The seven wonders", "# heapq"]
        results = generator.generate(prompts, max_new_tokens=4, temperature=0.7, seed=1)
        for prompt, result in zip(prompts, results, strict=True):
            streamed = generator.stream(prompt, max_new_tokens=4, temperature=0.7, seed=result.seed)
            assert "".join(chunk.text for chunk in streamed) == result.text


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_bit_exact_and_its_text_the_same_for_every_strategy(
    smollm2: Callable[[str], tuple[Any, Any]], dtype: str
) -> None:
    if not computes_in_bfloat16(torch.device("cpu")):
        pytest.skip("without AVX512-BF16 the probe finds that a product's rows depend on their number")
    model, tokenizer = smollm2(dtype)
    prompts = [chat("Repeat: a b c a b c a b c"), chat("Write a function that adds.")]
    texts = []
    for proposer in ("autoregressive", "prompt_lookup", "lookahead:N=3,W=3,G=3"):
        generator = Generator(model, tokenizer, proposer=proposer)
        assert str(generator.numerics) == "exact, bit-exact"
        results = generator.generate(prompts, max_new_tokens=8)
        texts.append([result.token_ids for result in results])
        is_drafted = sum(result.stats.steps for result in results) < sum(map(len, texts[-1]))
        assert is_drafted == (proposer != "autoregressive")
    assert texts[1:] == texts[:1] * 2
