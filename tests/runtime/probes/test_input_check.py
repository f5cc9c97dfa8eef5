"""The check of a model's first prompt with images: what the model reads otherwise is refused."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec import Generator, RequestError
from specdec.inputs.prepared import PreparedPrompt, prepared_prompts
from specdec.inputs.processor import ProcessorOutput
from tests.apps.in_transformers.test_vision_models import make

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
