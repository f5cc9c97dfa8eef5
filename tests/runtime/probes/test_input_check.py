"""The check of a model's first prompt with images: what the model reads otherwise is refused."""

import copy
import math
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from transformers import BartForConditionalGeneration

from specdec import Generator, RequestError
from specdec.inputs.own_continuation import PreparedCall
from specdec.inputs.prepared import PreparedPrompt, prepared_prompts
from specdec.inputs.processor import ProcessorOutput
from specdec.models.encoder_decoders import output_of
from tests.apps.in_transformers.test_vision_models import make
from tests.support import encoder_decoders

OTHERS = "mm_token_type_ids, position_ids"


@pytest.fixture
def model() -> Any:
    return make("Qwen2VL")


def prompt_of(model: Any) -> PreparedPrompt:
    ids = torch.tensor([[5, 6, 92, *[90] * 6, 93, 7, 8, 9]])
    grid = torch.tensor([[1, 4, 6]])  # patches, of which four make a token
    given = {"pixel_values": torch.rand(24, 96), "image_grid_thw": grid, "mm_token_type_ids": (ids == 90).long()}
    return ProcessorOutput({"input_ids": ids, **given}).row(model, 0)


def mistaken(prompt: PreparedPrompt, mistake: str) -> PreparedPrompt:
    inputs: Any = prompt.inputs
    if mistake == "offset":
        return replace(prompt, inputs=replace(inputs, offset=inputs.offset + 2))
    if mistake == "positions":
        return replace(prompt, inputs=replace(inputs, positions=inputs.positions.roll(1, 0)))
    features = inputs.features["image"]
    rows = replace(features.pooled, rows=features.pooled.rows.flip(-1))
    return replace(prompt, inputs=replace(inputs, features={"image": replace(features, pooled=rows)}))


@pytest.mark.usefixtures("no_findings")
@pytest.mark.parametrize("mistake", ["none", "offset", "positions", "features"])
def test_only_prompts_that_the_model_reads_otherwise_are_refused(model: Any, mistake: str) -> None:
    torch.manual_seed(1)
    prompt = prompt_of(model)
    wrong = prompt if mistake == "none" else mistaken(prompt, mistake)
    with Generator(model) as generator:
        (result,) = generator.generate([wrong], max_new_tokens=2)
        if mistake == "none":
            assert result.error is None
        else:
            assert isinstance(result.error, RequestError)
            assert "are read with logits that are off by" in str(result.error)


@pytest.mark.usefixtures("no_findings")
def test_a_prompt_without_finite_logits_says_nothing_about_later_ones(model: Any) -> None:
    torch.manual_seed(1)
    good = prompt_of(model)
    assert good.call is not None
    encoded = copy.deepcopy(good.call.given)
    encoded["mm_encoder_outputs"]["image"]["pooler_output"][0].fill_(math.nan)
    [bad] = prepared_prompts(model, good.call.input_ids, encoded)
    with Generator(model) as generator:
        results = [generator.generate([each], max_new_tokens=2)[0] for each in (bad, good)]
    assert "NaN or infinite: check the images" in str(results[0].error)
    assert results[1].error is None


def test_images_and_videos_are_of_different_kinds(model: Any) -> None:
    call = prompt_of(model).call
    assert call is not None
    encoded = call.given["mm_encoder_outputs"]
    videos = replace(call, given={**call.given, "mm_encoder_outputs": {"image": None, "video": encoded["image"]}})
    assert (call.names, videos.names) == (f"image, {OTHERS}", f"{OTHERS}, video")


def test_text_alone_isnt_checked(model: Any) -> None:
    (prompt,) = prepared_prompts(model, torch.arange(5, 12)[None], {})
    assert prompt.call is None


class Louder(BartForConditionalGeneration):  # type: ignore[misc]
    """Reads an argument that its ``generate`` prepares, and that no pass without ``generate`` has."""

    @wraps(BartForConditionalGeneration.prepare_inputs_for_generation)
    def prepare_inputs_for_generation(self, *given: Any, **others: Any) -> Any:
        return {**super().prepare_inputs_for_generation(*given, **others), "factor": 2.0}

    @wraps(BartForConditionalGeneration.forward)
    def forward(self, *given: Any, factor: float = 1.0, **others: Any) -> Any:
        output = super().forward(*given, **others)
        output.logits = output.logits * factor
        return output


@pytest.mark.usefixtures("no_findings")
@pytest.mark.parametrize("mistake", ["none", "argument", "states"])
def test_an_encoders_output_that_the_decoder_reads_otherwise_is_refused(mistake: str) -> None:
    bart = encoder_decoders.make("bart")
    bart.__class__ = Louder if mistake == "argument" else type(bart)
    prompt = ProcessorOutput(encoder_decoders.encoder_inputs("bart", bart, 3)).row(bart, 0)
    if mistake == "states":
        inputs: Any = prompt.inputs
        other = replace(inputs.encoder, output=output_of(inputs.encoder.output.last_hidden_state.flip(1)))
        other.output.last_hidden_state[:, 0] += 1
        prompt = replace(prompt, inputs=replace(inputs, encoder=other))
    with Generator(bart) as generator:
        (result,) = generator.generate([prompt], max_new_tokens=2)
    assert (result.error is None) == (mistake == "none")
    assert mistake == "none" or "are read with logits that are off by" in str(result.error)
    assert mistake == "none" or f"prompts of {type(bart).__name__} (bart)" in str(result.error)


@pytest.mark.usefixtures("no_findings")
def test_an_encoders_output_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, own = list[str](), PreparedCall.continuation
    monkeypatch.setattr(PreparedCall, "continuation", lambda call, row: checked.append(call.names) or own(call, row))
    whisper = encoder_decoders.make("whisper")
    with Generator(whisper) as generator:
        for seed in (1, 2, 3):
            [result] = generator.generate(**encoder_decoders.encoder_inputs("whisper", whisper, seed), max_new_tokens=2)
            assert result.error is None
    assert len(checked) == 1
