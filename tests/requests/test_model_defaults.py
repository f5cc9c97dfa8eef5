"""Where settings come from: keyword, passed generation config, the model's own; None is none, as in transformers."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from specdec import Generator, RequestError
from specdec.requests.model_defaults import ignored_defaults, own_eos_token_ids, own_rules
from specdec.settings import Settings
from tests.support import encoder_decoders, families

PROMPT, NUM_NEW, FEW = [1, 4, 2, 7], 24, 8
ABSENT = object()


@pytest.fixture
def model() -> PreTrainedModel:
    model = families.make(*families.TREES["llama"])
    model.generation_config.pad_token_id = 0
    return model


def written(model: PreTrainedModel, **given: Any) -> list[int]:
    """What transformers writes."""
    ids = torch.tensor([PROMPT])
    if "generation_config" not in given:
        given = {"max_new_tokens": NUM_NEW, **given}
    ids = model.generate(ids, attention_mask=torch.ones_like(ids), **given)
    return ids[0, len(PROMPT) :].tolist()


def ours(model: PreTrainedModel, **given: Any) -> list[int]:
    if "generation_config" not in given:
        given = {"max_new_tokens": NUM_NEW, **given}
    return list(Generator(model, proposer="prompt_lookup", numerics="fast").generate(PROMPT, **given).token_ids)


def made(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not ABSENT}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["eos_token_id", "suppress_tokens", "begin_suppress_tokens"])
def test_ids_come_from_where_transformers_takes_them(model: PreTrainedModel, name: str) -> None:
    free = written(model, eos_token_id=None, max_new_tokens=FEW)
    own, passed, keyword = free[1], free[2], free[5]
    some = (lambda token: token) if name == "eos_token_id" else (lambda token: [token])
    for of_class, of_model, of_config, of_call in product(
        (None, own), (None, own), (ABSENT, None, passed), (ABSENT, None, keyword)
    ):
        setattr(model.config, name, None if of_class is None else some(of_class))
        setattr(model.generation_config, name, None if of_model is None else some(of_model))
        given: dict[str, Any] = {} if of_call is ABSENT else {name: None if of_call is None else some(of_call)}
        given |= {} if of_config is not ABSENT else {"max_new_tokens": FEW}
        if of_config is not ABSENT:
            value = None if of_config is None else some(of_config)
            given["generation_config"] = GenerationConfig(max_new_tokens=FEW, pad_token_id=0, **{name: value})
        if name != "eos_token_id":
            delattr(model.config, name)  # transformers refuses to generate by it
        assert ours(model, **given) == written(model, **given), (of_class, of_model, of_config, of_call)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.8),
        ("no_repeat_ngram_size", 1),
        ("bad_words_ids", [[35], [88]]),
        ("min_new_tokens", 20),
        ("eos_token_id", 88),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_keyword_of_none_switches_off_what_the_passed_config_sets(
    model: PreTrainedModel, name: str, value: Any
) -> None:
    model.generation_config.eos_token_id = 35 if name == "min_new_tokens" else None
    config = GenerationConfig(max_new_tokens=NUM_NEW, **{name: value})
    given = {"generation_config": config, name: None}
    assert ours(model, **given) == written(model, **given) != ours(model, generation_config=config)


def test_a_keyword_of_none_among_sampling_settings_is_transformers_value_for_none() -> None:
    config = GenerationConfig(do_sample=True, temperature=0.3, top_k=7, top_p=0.8)
    assert Settings.make({"temperature": None}, config) == Settings(temperature=1.0, top_k=7, top_p=0.8)
    assert Settings.make({"top_k": None, "top_p": None}, config) == Settings(temperature=0.3)


def test_do_sample_and_stop_strings_may_be_none_too(model: PreTrainedModel) -> None:
    config = GenerationConfig(do_sample=True, max_new_tokens=NUM_NEW, stop_strings=["a"])
    given = {"generation_config": config, "stop_strings": None}  # without a tokenizer a string would be refused
    assert ours(model, **given, do_sample=None) == written(model)
    assert ours(model, **given, seed=1) != written(model)


RULES: dict[str, dict[str, Any]] = {
    "a language": {"forced_bos_token_id": 7, "begin_suppress_tokens": [*range(8, 90)]},
    "a last token": {"forced_eos_token_id": 9, "bad_words_ids": [[token] for token in range(20, 60)]},
    "no repetition": {"no_repeat_ngram_size": 2, "decoder_start_token_id": 33},
    "no early end": {"min_length": 9, "eos_token_id": [1, *range(4, 90)]},
    "more tokens": {"min_new_tokens": 9, "eos_token_id": [1, *range(4, 90)]},
}


def test_a_request_may_ask_for_fewer_tokens_than_the_models_own_least(model: PreTrainedModel) -> None:
    model.generation_config.min_new_tokens = 20
    with Generator(model) as generator:
        assert len(generator.generate([5, 8, 13], max_new_tokens=3).token_ids) == 3
    with Generator(model) as generator, pytest.raises(RequestError, match="min_new_tokens=20 is above"):
        generator.generate([5, 8, 13], max_new_tokens=3, min_new_tokens=20)


def by_turns() -> Iterator[Any]:
    """Yield each family with each rule, two for each family by day: a rule is read by the same code for all."""
    for i, family in enumerate(["llama", "bart", "mbart", "nllb", "marian"]):
        for j, rule in enumerate(RULES):
            is_for_the_night = (i + j) % len(RULES) > 1
            yield pytest.param(family, rule, marks=[pytest.mark.nightly] if is_for_the_night else [])


@pytest.mark.parametrize(("family", "rule"), [*by_turns()])
def test_forced_and_forbidden_tokens_are_those_of_the_models_own_generate(family: str, rule: str) -> None:
    is_decoder = family == "llama"
    model = families.make(*families.TREES["llama"]) if is_decoder else encoder_decoders.make(family)
    prompts = [PROMPT, PROMPT[:1]]
    found = dict[bool, list[list[int]]]()
    for has_rule in (False, True):
        vars(model.generation_config).update({"pad_token_id": 0, **(RULES[rule] if has_rule else {})})
        settings: dict[str, Any] = {"max_new_tokens": 14, "do_sample": False}
        own = [model.generate(torch.tensor([ids]), **settings, num_beams=1)[0].tolist() for ids in prompts]
        starts = [len(ids) if is_decoder else 1 for ids in prompts]
        found[has_rule] = [ids[start:] for ids, start in zip(own, starts, strict=True)]
        with Generator(model, proposer="suffix", numerics="fast") as generator:
            results = generator.generate(prompts, **settings)
        assert [each.error for each in results] == [None, None]
        assert [list(each.token_ids) for each in results] == found[has_rule]
    assert found[True] != found[False]


def test_a_constraint_decides_where_a_text_ends_and_not_the_models_own_config(model: PreTrainedModel) -> None:
    model.generation_config.update(forced_eos_token_id=9, min_length=12, forced_bos_token_id=None, bad_words_ids=[[3]])
    assert own_rules(model, {"constraint": "x"}) == {"bad_words_ids": [[3]]}
    with pytest.raises(RequestError, match="forced_bos_token_id: 96 is outside the vocabulary"):
        Generator(model).generate(PROMPT, forced_bos_token_id=96)


def test_what_is_ignored_of_the_models_own_config_is_noted_and_nothing_that_changes_no_text(
    model: PreTrainedModel,
) -> None:
    config = model.generation_config
    assert ignored_defaults(model) == ()
    config.update(repetition_penalty=1.0, top_p=1.0, use_cache=False, cache_implementation="static", num_beams=1)
    config.eos_token_id, config.suppress_tokens, config.max_window_size = [2, 3], [5], 6144
    assert ignored_defaults(model) == ()
    assert own_eos_token_ids(model, families.VOCAB) == (2, 3)
    assert own_rules(model, {}) == {"suppress_tokens": [5]}
    config.update(repetition_penalty=1.2, sequence_bias=[[[3], 1.0]], num_beams=4, top_h=0.5, do_sample=True)
    assert ignored_defaults(model) == (
        "ignored in the model's generation config: do_sample=True, repetition_penalty=1.2; pass generation_config to "
        "apply it",
        "ignored in the model's generation config, and not supported here: num_beams=4, top_h=0.5, "
        "sequence_bias=[[[3], 1.0]]",
    )
