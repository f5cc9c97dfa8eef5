"""Whatever drafts, the text is plain decoding's on the same engine."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import Generator, demo
from specdec.plugins import load_plugins

Make = Callable[[str], PreTrainedModel]
PROMPTS = [[5, 9, 2, 5, 9], [7], [1, 2, 3, 1, 2, 3, 1, 2, 30, 31, 32, 33]]
STRATEGIES = ["auto", "prompt_lookup", "lookahead:N=3,W=3,G=3", "jacobi", "suffix", "token_recycling"]


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_strategies_say_what_plain_decoding_says(make: Make, numerics: Any, temperature: float) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 40, "temperature": temperature, "seed": 3}

    def texts(proposer: str, prompts: Any) -> list[list[int]]:
        generator = Generator(make("llama"), proposer=proposer, numerics=numerics, backend="openvino")
        return [list(result.token_ids) for result in generator.generate(prompts, **settings)]

    plain = texts("autoregressive", PROMPTS)
    assert plain == [texts("autoregressive", [prompt])[0] for prompt in PROMPTS]
    for proposer in STRATEGIES:
        assert texts(proposer, PROMPTS) == plain, proposer


def test_the_text_is_that_of_the_hf_backend(make: Make) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "seed": 3}
    for name in ("llama", "gemma3", "gpt_oss", "deepseek_v3"):
        ours, theirs = (
            Generator(make(name), backend=backend).generate(PROMPTS, **settings) for backend in ("openvino", "hf")
        )
        assert [each.token_ids for each in ours] == [each.token_ids for each in theirs], name


def test_the_backend_is_found_by_name_and_describes_itself(make: Make) -> None:
    assert "openvino" in {plugin.name for plugin in load_plugins().of_kind("backends")}
    exact, fast = (Generator(make("llama"), backend="openvino", numerics=mode) for mode in ("auto", "fast"))
    assert str(exact.numerics) == "exact, bit-exact"
    assert "the engine's rounding of a token depends on the shape of its pass" in str(fast.numerics)


@pytest.mark.parametrize("options", ["kv=u8", "precision=bfloat16", "precision=bfloat16,kv=u8", "weights=int8"])
def test_another_model_by_name_is_still_one_model(make: Make, options: str, request: pytest.FixtureRequest) -> None:
    if "weights" in options:
        pytest.importorskip("nncf")
    if "bfloat16" in options:
        request.getfixturevalue("bfloat16")
    settings: dict[str, Any] = {"max_new_tokens": 40, "seed": 3}
    texts = list[list[tuple[int, ...]]]()
    for proposer in ("autoregressive", "prompt_lookup:num_tokens=3"):
        with pytest.warns(UserWarning, match=f"{options.replace(',', ', ')}, but the model has float32"):
            generator = Generator(make("qwen3"), proposer=proposer, backend=f"openvino:{options}")
        assert generator.numerics.is_bit_exact
        results = generator.generate(PROMPTS, **settings)
        assert not any(result.lossless for result in results)
        texts.append([tuple(result.token_ids) for result in results])
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("bfloat16")
def test_what_was_found_with_one_precision_is_not_anothers(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        noises = [
            Generator(make("llama"), backend=f"openvino:precision={precision}", numerics="fast").numerics.noise
            for precision in ("model", "bf16")
        ]
    assert noises[1] > 100 * noises[0]


def test_weights_that_another_generator_has_packed_are_not_the_engines(make: Make) -> None:
    model = make("qwen2")
    with Generator(model, backend="openvino") as alone:
        expected = alone.generate(PROMPTS[0], max_new_tokens=20).token_ids
    with Generator(model, backend="hf", weights="packed") as packed, Generator(model, backend="openvino") as engine:
        assert engine.generate(PROMPTS[0], max_new_tokens=20).token_ids == expected
        assert packed.generate(PROMPTS[0], max_new_tokens=20).token_ids == expected
        packed.close()
        assert engine.generate(PROMPTS[0], max_new_tokens=20).token_ids == expected


@pytest.mark.usefixtures("bfloat16")  # which the built-in model has
def test_a_trained_head_drafts_from_the_engines_hidden_states(tmp_path: Path) -> None:
    torch.save({f"{head}.0.linear.weight": torch.zeros(384, 384) for head in range(2)}, tmp_path / "medusa_lm_head.pt")
    folder = Path(demo.__file__).parent / "model"
    prompts = [prompt.text for prompt in demo.prompts()[:2]]
    head = f"eagle3:head={demo.head_folder()}"
    with Generator(str(folder), proposer=head, backend="openvino") as generator:
        for temperature in (0.0, 1.0):
            settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature, "seed": 3}
            plain = generator.generate(prompts, proposer="autoregressive", **settings)
            for proposer in (head, f"auto+{head}", f"medusa:head={tmp_path}"):
                found = generator.generate(prompts, proposer=proposer, **settings)
                assert [each.token_ids for each in found] == [each.token_ids for each in plain]
            drafted = generator.generate(prompts, **settings)
            assert sum(each.stats.steps for each in drafted) < 30
