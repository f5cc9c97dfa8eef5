"""Encoder-decoder models decode with drafts, through both doors, and write what ``generate`` writes."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers.generation import GenerationMixin
from transformers.generation.logits_process import WhisperNoSpeechDetection

import specdec
from specdec import Generator, RequestError
from specdec.apps.in_transformers import release
from specdec.inputs.processor import ProcessorOutput
from specdec.record import StepRecord
from specdec.testing import toy_tokenizer
from tests.support.encoder_decoders import MODELS, VOCAB, encoder_inputs, make, make_whisper

STRATEGIES = ["autoregressive", "prompt_lookup:num_matches=2", "lookahead:N=3,W=3,G=3", "suffix", "auto"]
# By day strategies take turns among them; the others have auto alone.
BY_DAY = {"bart": ["auto", *STRATEGIES[:2]], "t5": ["auto", STRATEGIES[3]], "whisper": ["auto", STRATEGIES[2]]}
GREEDY: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "num_beams": 1, "no_repeat_ngram_size": 3}
NO_ENDS: dict[str, Any] = {"eos_token_id": None, "forced_eos_token_id": None, "pad_token_id": 1}


@pytest.fixture(params=MODELS, scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str) -> Iterator[Any]:
    made = make(family)
    yield made
    release(made)


def batch_of(family: str, model: Any) -> dict[str, torch.Tensor]:
    """The inputs of two prompts, padded on the right where lengths may differ."""
    two = [encoder_inputs(family, model, 4), encoder_inputs(family, model, 5, 7)]
    if "input_ids" not in two[0]:
        two[1] = encoder_inputs(family, model, 5)
        return {name: torch.cat([each[name] for each in two]) for name in two[0]}
    padding = 0, two[0]["input_ids"].shape[1] - two[1]["input_ids"].shape[1]
    pads = {"input_ids": int(model.config.pad_token_id), "attention_mask": 0}
    return {
        name: torch.cat([two[0][name], torch.nn.functional.pad(two[1][name], padding, value=pad)])
        for name, pad in pads.items()
    }


def generate(model: Any, inputs: dict[str, torch.Tensor], strategy: str | None, **settings: Any) -> Any:
    """What transformers' ``generate`` returns, also for Whisper, which has one of its own around it."""
    door = {} if strategy is None else {"custom_generate": specdec.custom_generate(strategy)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GenerationMixin.generate(model, **inputs, **GREEDY | NO_ENDS | settings, **door)


@pytest.mark.parametrize("by_day", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_custom_generate_writes_what_generate_writes_alone_and_in_a_ragged_batch(
    family: str, model: Any, by_day: bool
) -> None:
    strategies = BY_DAY.get(family, ["auto"])
    if not by_day:
        strategies = [name for name in STRATEGIES if name not in strategies]
    for inputs in (encoder_inputs(family, model, 3), batch_of(family, model)):
        own = generate(model, inputs, None)
        for strategy in strategies:
            assert torch.equal(generate(model, inputs, strategy), own), strategy


@pytest.mark.parametrize("family", ["bart", "whisper"], scope="module")
def test_sampled_text_is_the_same_with_every_strategy(family: str, model: Any) -> None:
    inputs, texts = batch_of(family, model), []
    for strategy in STRATEGIES[:3]:
        torch.manual_seed(7)
        texts.append(generate(model, inputs, strategy, do_sample=True, temperature=0.8, top_k=20))
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0], generate(model, inputs, STRATEGIES[0]))


@pytest.mark.parametrize("family", ["t5"], scope="module")
def test_the_output_is_of_the_class_that_generate_returns(family: str, model: Any) -> None:
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    own, found = (generate(model, batch_of(family, model), door, **asked) for door in (None, "auto"))
    assert type(found) is type(own)
    assert torch.equal(found.sequences, own.sequences)
    assert torch.allclose(torch.stack(found.logits), torch.stack(own.logits), atol=1e-4)
    assert torch.allclose(torch.stack(found.scores), torch.stack(own.scores), atol=1e-4)


@pytest.mark.parametrize("family", ["bart", "nllb", "t5gemma", "donut", "moonshine"], scope="module")
def test_a_generator_takes_the_encoders_input_in_every_form(family: str, model: Any) -> None:
    inputs = encoder_inputs(family, model, 3)
    own = generate(model, inputs, None)[0, 1:].tolist()
    with Generator(model, toy_tokenizer(VOCAB)) as generator:
        assert generator.model is model
        settings: dict[str, Any] = {"max_new_tokens": 24, "no_repeat_ngram_size": 3, **NO_ENDS}
        forms: list[Any] = [generator.generate(**inputs, **settings)]
        if "input_ids" in inputs:
            ids = inputs["input_ids"][0].tolist()
            forms += [generator.generate(ids, **settings), generator.generate([ids, ids[:4]], **settings)]
            forms.append(generator.generate(" ".join(map(str, ids)), **settings))
        results = [form[0] if isinstance(form, list) else form for form in forms]
    assert [list(result.token_ids) for result in results] == [own] * len(results)


@pytest.mark.parametrize("family", ["bart", "whisper", "moonshine"], scope="module")
def test_exact_bits_depend_neither_on_drafts_nor_on_other_prompts_of_a_batch(family: str, model: Any) -> None:
    found: list[torch.Tensor] = []

    def logits_of(record: StepRecord) -> None:
        kept.extend(one.clone() for outcome in record.outcomes if not outcome.request.index for one in outcome.logits)

    one = ProcessorOutput(encoder_inputs(family, model, 3))
    other = ProcessorOutput(encoder_inputs(family, model, 4, 23))
    settings: dict[str, Any] = {"max_new_tokens": 16, "eos_token_id": [], "keeps_logits": True, "on_step": logits_of}
    for strategy in ("autoregressive", "lookahead:N=3,W=3,G=3"):
        with Generator(model, proposer=strategy, numerics="exact") as generator:
            assert generator.numerics.is_bit_exact, str(generator.numerics)
            for prompts in (one.prompts(), [*one.prompts(), *other.prompts()]):
                kept: list[torch.Tensor] = []
                generator.generate(prompts, **settings)
                found.append(torch.stack(kept))
    assert len(found[0]) == 16
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.fixture(scope="module")
def whisper() -> Iterator[Any]:
    made = make_whisper()
    yield made
    release(made)


def transcribed(model: Any, frames: int, strategy: str | None, **settings: Any) -> Any:
    features = torch.randn(settings.pop("rows", 2), 8, frames, generator=torch.Generator().manual_seed(3))
    mask = torch.ones(len(features), frames, dtype=torch.long)
    mask[1:, int(frames * 0.7) :] = 0
    door = {} if strategy is None else {"custom_generate": specdec.custom_generate(strategy)}
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(
            input_features=features, attention_mask=mask, language="en", task="transcribe", no_repeat_ngram_size=3,
            **settings, **door,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("frames", "settings"),
    [
        (100, {"rows": 4}),
        (100, {"return_timestamps": True}),
        (230, {"return_timestamps": True, "condition_on_prev_tokens": True}),
        (
            230,
            {"return_timestamps": True, "temperature": (0.0, 0.4), "compression_ratio_threshold": 100.0,
             "logprob_threshold": -100.0, "no_speech_threshold": 0.6},
        ),
        (
            230,
            {"return_timestamps": True, "temperature": 0.0, "compression_ratio_threshold": 1.35,
             "logprob_threshold": -1.0, "no_speech_threshold": 0.001},
        ),
    ],
    ids=["short, four rows", "timestamps", "long, with the text so far", "long, thresholds", "long, silence"],
)  # fmt: skip
def test_whispers_own_generate_writes_what_it_writes_without(
    whisper: Any, frames: int, settings: dict[str, Any]
) -> None:
    own = transcribed(whisper, frames, None, **settings)
    for strategy in ("lookahead:N=3,W=3,G=3", "auto"):
        assert torch.equal(transcribed(whisper, frames, strategy, **settings), own)


def test_whispers_fallback_samples_the_same_text_with_every_strategy(whisper: Any) -> None:
    settings = {
        "return_timestamps": True, "temperature": (0.0, 0.4), "compression_ratio_threshold": 1.35,
        "logprob_threshold": -1.0, "no_speech_threshold": 0.999,
    }  # fmt: skip
    plain, drafted = (transcribed(whisper, 100, strategy, **settings) for strategy in STRATEGIES[:2])
    assert torch.equal(plain, drafted)
    assert not torch.equal(plain, transcribed(whisper, 100, None, **{**settings, "temperature": 0.0}))


def test_silence_is_detected_once_for_a_call(whisper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []
    own = WhisperNoSpeechDetection.__call__

    def counted(self: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(scores.shape)
        return own(self, input_ids, scores)

    monkeypatch.setattr(WhisperNoSpeechDetection, "__call__", counted)
    thresholds = {"no_speech_threshold": 0.6, "logprob_threshold": -100.0, "temperature": 0.0}
    transcribed(whisper, 100, "lookahead:N=3,W=3,G=3", return_timestamps=True, **thresholds)
    assert calls == [torch.Size([2, whisper.config.vocab_size])]


def test_what_is_refused_says_what_to_do() -> None:
    model = make("nllb")
    inputs = encoder_inputs("nllb", model, 3)
    with pytest.raises(RequestError, match="num_beams=1"):
        generate(model, inputs, "auto", num_beams=2)
    with pytest.raises(RequestError, match=r"padding token 1 .*leave it out"):
        generate(model, inputs, "auto", decoder_input_ids=torch.tensor([[2, 5, 1, 6]]))
    with pytest.raises(RequestError, match="decoder_inputs_embeds"):
        specdec.custom_generate()(model, torch.tensor([[2]]), [], [], model.generation_config, decoder_inputs_embeds=1)
    with pytest.raises(RequestError, match="from 0 to 95"):
        Generator(model).generate([VOCAB])
    release(model)


def test_a_recording_of_several_windows_is_left_to_whispers_own_generate(whisper: Any) -> None:
    generator = Generator(whisper)
    with pytest.raises(RequestError, match="input_features"):
        generator.generate([5, 6])
    features, mask = torch.randn(1, 8, 230), torch.ones(1, 230, dtype=torch.long)
    whisper.generation_config.return_timestamps = True  # without, Whisper refuses longer recordings itself
    try:
        [short] = generator.generate(input_features=features[..., :100], max_new_tokens=4)
        [long] = generator.generate(input_features=features, attention_mask=mask, max_new_tokens=4)
    finally:
        whisper.generation_config.return_timestamps = False
    generator.close()
    assert len(short.token_ids) == 4
    assert isinstance(long.error, RequestError)
    assert "custom_generate" in str(long.error)


@pytest.mark.parametrize("family", ["t5", "whisper", "trocr"], scope="module")
def test_a_folder_is_loaded_by_the_class_of_its_configuration(
    family: str, model: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(family)
    model.save_pretrained(folder)
    inputs = encoder_inputs(family, model, 3)
    with Generator(str(folder), toy_tokenizer(VOCAB), backend="hf", numerics="fast") as generator:
        assert type(generator.model) is type(model)
        [result] = generator.generate(**inputs, max_new_tokens=12, eos_token_id=[], no_repeat_ngram_size=3)
    assert list(result.token_ids) == generate(model, inputs, None, max_new_tokens=12)[0, 1:].tolist()
