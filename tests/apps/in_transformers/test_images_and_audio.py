"""Prompts with images and audio: every strategy's text is that of ``generate``."""

from typing import Any

import pytest
from transformers import PreTrainedModel

import specdec
from specdec import Generator
from specdec.apps.in_transformers import release
from specdec.inputs.processor import ProcessorOutput
from tests.support import multimodal
from tests.support.multimodal import FAMILIES, Inputs

STRATEGIES = "autoregressive", "prompt_lookup:num_matches=2", "lookahead:N=3,W=3,G=3", "suffix", "auto"
CALL: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
WELL_KNOWN = "llava", "qwen2_vl", "gemma3", "gemma4", "paligemma", "voxtral"  # one of each mechanism
ONLY_FAST = {name for name, family in FAMILIES.items() if not family.takes_trees} | {"aria", "ernie4_5_vl"}  # experts


def prompts_of(name: str) -> list[Inputs]:
    return [multimodal.prompt(name, 1), multimodal.prompt(name, 2, 2, 13), multimodal.prompt(name, 3, 0, 9)]


def check(model: PreTrainedModel, inputs: Inputs, strategies: tuple[str, ...], numerics: str) -> None:
    own = model.generate(**inputs, **CALL).tolist()
    assert len(own[0]) == inputs["input_ids"].shape[1] + CALL["max_new_tokens"]
    for strategy in strategies:
        drafted = model.generate(**inputs, **CALL, custom_generate=specdec.custom_generate(strategy, numerics=numerics))
        assert drafted.tolist() == own, strategy
    release(model)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batchs_text_is_generates_for_every_family(name: str) -> None:
    numerics = "fast" if name in ONLY_FAST else "exact"
    strategies = STRATEGIES if name in WELL_KNOWN else ("prompt_lookup:num_matches=2",)
    check(multimodal.make(name), multimodal.padded(name, prompts_of(name)), strategies, numerics)


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_a_single_text_is_generates_for_every_strategy(name: str) -> None:
    check(multimodal.make(name), multimodal.prompt(name, 1, 2), STRATEGIES, "fast")


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_what_followed_the_same_words_isnt_drafted_if_it_was_an_image(name: str) -> None:
    inputs = multimodal.compose(name, [5, 6], 1, [7, 8, 9, 5, 6])
    check(multimodal.make(name), inputs, ("prompt_lookup:num_matches=2", "suffix"), "fast")


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_a_seed_gives_the_same_sampled_text_by_every_strategy(name: str) -> None:
    model = multimodal.make(name)
    texts = []
    for strategy in STRATEGIES:
        with Generator(model, proposer=strategy, numerics="exact") as generator:
            given = [*ProcessorOutput(multimodal.padded(name, prompts_of(name))).prompts()]
            found = generator.generate(given, max_new_tokens=20, temperature=1.0, seed=[1, 2, 3], eos_token_id=[])
            texts.append([result.token_ids for result in found])
    assert texts == [texts[0]] * len(STRATEGIES)
    assert len({*map(tuple, texts[0])}) == 3
