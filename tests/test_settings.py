"""Settings: nothing is on unless asked for, and what can't be honoured is refused by name."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, TemperatureLogitsWarper

from specdec import RequestError
from specdec.settings import Settings

FIELDS = (
    "max_new_tokens, max_length, min_new_tokens, min_length, temperature, top_k, top_p, min_p, repetition_penalty, "
    "frequency_penalty, presence_penalty, logit_bias, "
    "no_repeat_ngram_size, suppress_tokens, begin_suppress_tokens, bad_words_ids, forced_bos_token_id, "
    "forced_eos_token_id, eos_token_id, stop, "
    "skip_special_tokens, hidden_token_ids, seed, logits_processor, stopping_criteria, max_time, constraint, "
    "keeps_scores, keeps_logits, prompt_logprobs"
)


def refusal(given: dict[str, Any], config: Any = None) -> str:
    with pytest.raises(RequestError) as caught:
        Settings.make(given, config)
    return str(caught.value)


def config(**values: Any) -> GenerationConfig:
    """With these values, also where transformers itself would call them contradictory."""
    made = GenerationConfig()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_nothing_is_on_unless_asked_for() -> None:
    settings = Settings()
    assert settings.temperature == 0.0
    assert settings.repetition_penalty == 1.0
    off = (settings.top_k, settings.top_p, settings.min_p, settings.no_repeat_ngram_size, settings.min_new_tokens)
    assert off == (None,) * 5
    assert settings.suppress_tokens == settings.bad_words_ids == settings.stop == settings.logits_processor == ()


def test_an_unknown_name_is_refused_with_the_allowed_ones() -> None:
    assert refusal({"colour": 3}) == f"settings refused: unknown name 'colour' (allowed: {FIELDS})"
    assert refusal({"top_kk": 3}) == "settings refused: unknown name 'top_kk' (did you mean 'top_k'?)"


def test_a_name_of_transformers_is_refused_with_what_to_do() -> None:
    assert refusal({"num_beams": 3}) == (
        "settings refused: unknown name 'num_beams' (there is no beam search here: use model.generate)"
    )


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0: input should be greater than or equal to 1"),
        ({"temperature": -0.5}, "temperature=-0.5: input should be greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature=nan: input should be a finite number"),
        ({"temperature": float("inf")}, "temperature=inf: input should be a finite number"),
        ({"temperature": 1e-40}, "temperature=1e-40 is below 1e-06, where scores overflow: 0 takes the most likely"),
        ({"temperature": "hot"}, "temperature='hot': input should be a valid number"),
        ({"temperature": 1, "top_k": -1}, "top_k=-1: input should be greater than or equal to 1"),
        ({"temperature": 1, "top_p": 0}, "top_p=0: input should be greater than 0"),
        ({"temperature": 1, "top_p": 1.5}, "top_p=1.5: input should be less than or equal to 1"),
        ({"temperature": 1, "min_p": -0.1}, "min_p=-0.1: input should be greater than 0"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: input should be greater than 0"),
        ({"seed": -1}, "seed=-1: input should be greater than or equal to 0"),
        ({"seed": 2**63}, f"seed={2**63}: input should be less than {2**63}"),
        ({"stop": ["a", ""]}, "stop contains an empty string, which would stop every text: remove it"),
        ({"stop": ""}, "stop contains an empty string"),
        ({"stop": 3}, "stop=3: give a string, or a list of them"),
        ({"stop": ["a", 5]}, "stop=['a', 5]: give a string, or a list of them"),
        ({"bad_words_ids": [[1], []]}, "bad_words_ids contains an empty list"),
        ({"eos_token_id": torch.tensor([[1]])}, "eos_token_id=tensor([[1]]): give a token id, a list of them, or None"),
        ({"logits_processor": 5}, "logits_processor=5: give a function (input_ids, scores) -> scores"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9 is above max_new_tokens=8"),
        ({"temperature": 1, "top_k": torch.tensor([1, 2])}, "top_k=tensor([1, 2]): input should be a valid integer"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_what_was_given_and_what_is_allowed(
    given: dict[str, Any], fault: str
) -> None:
    assert refusal(given).startswith(f"settings refused: {fault}")


def test_every_setting_at_fault_is_named_at_once() -> None:
    message = refusal({"max_new_tokens": 0, "temperature": -1, "beams": 2})
    assert all(name in message for name in ("max_new_tokens=0", "temperature=-1", "unknown name 'beams'"))


@pytest.mark.parametrize(("name", "value"), [("top_k", 5), ("top_p", 0.9), ("min_p", 0.1)])
def test_a_sampling_setting_is_refused_at_temperature_0_and_taken_above(name: str, value: float) -> None:
    assert f"{name} needs sampling, but temperature is 0: set temperature, or leave {name} out" in refusal(
        {name: value}
    )
    assert getattr(Settings.make({name: value, "temperature": 0.7}), name) == value


@pytest.mark.parametrize(
    "neutral",
    [{"top_k": 0}, {"top_p": 1.0}, {"min_p": 0.0}, {"no_repeat_ngram_size": 0}, {"min_new_tokens": 0}, {"seed": None}],
)
def test_a_neutral_value_of_transformers_is_the_same_as_none_at_all(neutral: dict[str, Any]) -> None:
    assert Settings.make(neutral) == Settings()


@pytest.mark.parametrize(
    ("given", "expected"),
    [(7, (7,)), ([7, 8], (7, 8)), (torch.tensor(7), (7,)), (torch.tensor([7, 8]), (7, 8)), ((), ()), (None, ())],
)
def test_end_of_text_is_one_id_several_a_tensor_or_none_at_all(given: Any, expected: Any) -> None:
    assert Settings.make({"eos_token_id": given}).eos_token_id == expected
    assert Settings.make({}).eos_token_id is None  # the model's own


def test_one_string_or_processor_is_a_list_of_one() -> None:
    def processor(input_ids: Any, scores: Any) -> Any:
        return scores

    whole = LogitsProcessorList([TemperatureLogitsWarper(2.0)])
    assert Settings.make({"stop": "end"}).stop == ("end",)
    assert Settings.make({"logits_processor": processor}).logits_processor == (processor,)
    assert Settings.make({"logits_processor": [processor, processor]}).logits_processor == (processor, processor)
    assert Settings.make({"logits_processor": whole}).logits_processor == tuple(whole)


def test_settings_do_not_change_once_made() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().temperature = 1.0


def test_an_empty_generation_config_changes_nothing() -> None:
    assert Settings.make({}, GenerationConfig()) == Settings()


def test_do_sample_samples_at_temperature_1_among_50_as_transformers_does() -> None:
    assert Settings.make({}, GenerationConfig(do_sample=True)) == Settings(temperature=1.0, top_k=50)
    chosen = GenerationConfig(do_sample=True, temperature=0.3, top_k=0, top_p=0.8)
    assert Settings.make({}, chosen) == Settings(temperature=0.3, top_p=0.8)


@pytest.mark.parametrize("do_sample", [False, None])
def test_without_do_sample_the_config_is_greedy_whatever_else_it_says(do_sample: bool | None) -> None:
    greedy = config(do_sample=do_sample, temperature=0.7, top_k=50, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    assert Settings.make({}, greedy) == Settings(repetition_penalty=1.2)


def test_the_config_is_honoured_under_the_names_of_settings() -> None:
    same = {"max_new_tokens": 9, "min_new_tokens": 2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    ids = {"suppress_tokens": [4], "begin_suppress_tokens": [5], "bad_words_ids": [[6, 7]], "eos_token_id": [2, 3]}
    ids |= {"forced_bos_token_id": 8, "forced_eos_token_id": 9, "min_length": 4}
    made = Settings.make({}, config(**same, **ids, stop_strings=["end"]))
    assert made == Settings(**same, **ids, stop="end")


def test_keywords_go_before_the_config_and_the_config_before_defaults() -> None:
    given = config(do_sample=True, temperature=0.3, max_new_tokens=7, suppress_tokens=[1])
    made = Settings.make({"temperature": 0.9}, given, {"suppress_tokens": [2], "begin_suppress_tokens": [3]})
    assert made == Settings(
        temperature=0.9, top_k=50, max_new_tokens=7, suppress_tokens=(1,), begin_suppress_tokens=(3,)
    )


def test_a_temperature_of_0_makes_a_sampling_config_greedy() -> None:
    assert Settings.make({"temperature": 0.0}, GenerationConfig(do_sample=True, top_p=0.9)) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 4),
        ("penalty_alpha", 0.6),
        ("guidance_scale", 2.0),
        ("constraints", ["must"]),
        ("force_words_ids", [[3]]),
        ("num_return_sequences", 2),
        ("prompt_lookup_num_tokens", 3),
        ("num_assistant_tokens", 5),
        ("assistant_early_exit", 2),
        ("typical_p", 0.9),
        ("sequence_bias", [[[1], 2.0]]),
        ("a_setting_of_tomorrow", True),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(name: str, value: Any) -> None:
    asked = "generation_config has options that specdec doesn't support"
    assert refusal({}, config(**{name: value})).startswith(f"{asked}: {name}={value!r}; remove them")


def test_everything_that_can_not_be_honoured_is_named_at_once() -> None:
    assert "num_beams=4, penalty_alpha=0.6;" in refusal({}, config(penalty_alpha=0.6, num_beams=4))


def test_what_has_no_say_in_the_text_or_is_switched_off_is_passed_over() -> None:
    silent = config(use_cache=True, pad_token_id=0, bos_token_id=1, num_beams=1, typical_p=1.0, guidance_scale=1.0)
    assert Settings.make({}, silent) == Settings()


@pytest.mark.parametrize("length", [20, 100])
def test_max_length_counts_the_prompt_unless_new_tokens_are_counted_too(length: int) -> None:
    made = Settings.make({}, config(max_length=length))
    assert made.after_prompt(12).max_new_tokens == length - 12
    with pytest.raises(RequestError, match=f"the prompt has {length} tokens, and max_length={length} counts them"):
        made.after_prompt(length)
    assert Settings.make({"max_new_tokens": 5, "max_length": length}).after_prompt(12).max_new_tokens == 5
    assert Settings.make({"max_new_tokens": 5}, config(max_length=length)).max_new_tokens == 5
    assert Settings.make({}, config(max_length=length, max_new_tokens=6)).max_new_tokens == 6


def test_something_else_than_a_generation_config_is_refused() -> None:
    assert "generation_config={'do_sample': True}: give a transformers GenerationConfig" in refusal(
        {}, {"do_sample": True}
    )
