"""Where settings come from: keyword, passed generation config, the model's own; None is none, as in transformers."""

from itertools import product
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from specdec import Generator
from specdec.requests.model_defaults import ignored_defaults, own_eos_token_ids, own_suppressed_tokens
from specdec.settings import Settings
from tests.support import families

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


def test_what_is_ignored_of_the_models_own_config_is_noted_and_nothing_that_changes_no_text(
    model: PreTrainedModel,
) -> None:
    config = model.generation_config
    assert ignored_defaults(model) == ()
    config.update(repetition_penalty=1.0, top_p=1.0, use_cache=False, cache_implementation="static", num_beams=1)
    config.eos_token_id, config.suppress_tokens, config.max_window_size = [2, 3], [5], 6144
    assert ignored_defaults(model) == ()
    assert own_eos_token_ids(model, families.VOCAB) == (2, 3)
    assert own_suppressed_tokens(model) == {"suppress_tokens": [5]}
    deciding = {"bad_words_ids": [[3]], "sequence_bias": [[[3], 1.0]], "min_new_tokens": 4, "top_h": 0.5}
    config.update(**deciding)
    (note,) = ignored_defaults(model)
    assert all(f"{name}={value!r}" in note for name, value in deciding.items())
