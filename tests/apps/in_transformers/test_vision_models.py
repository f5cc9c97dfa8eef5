"""Calls of vision-language classes are decoded as by ``generate`` itself: text alone, and text behind an image."""

from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import specdec
from tests.apps.in_transformers.test_custom_generate import NUM_NEW, SPECDEC, batch
from tests.support import families

TEXT = families.SMALL
EYES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PATCHES = {**EYES, "image_size": 16, "patch_size": 8}
QWEN = {"depth": 1, "num_heads": 2, "patch_size": 4, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32}
QWEN_TOKENS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
WINDOWED = {"head_dim": 8, "sliding_window": families.WINDOW, "layer_types": families.MIXED}

# class before "ForConditionalGeneration" -> (arguments of its vision configuration, of its text's, of its own)
CLASSES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Llava": ({**PATCHES, "model_type": "clip_vision_model"}, {"model_type": "llama"}, {"image_token_index": 90}),
    "SmolVLM": (PATCHES, {"model_type": "llama"}, {"image_token_id": 90}),
    "Gemma3": (PATCHES, WINDOWED, {"image_token_id": 90, "mm_tokens_per_image": 4}),
    "Qwen2VL": (
        {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2},
        {"rope_parameters": AXES},
        QWEN_TOKENS,
    ),
    "Qwen3VL": (
        {**QWEN, "deepstack_visual_indexes": [0]},
        {"rope_parameters": AXES, "head_dim": 8},
        QWEN_TOKENS,
    ),
    "Glm4v": (QWEN, {"rope_parameters": AXES}, {"image_token_id": 90, "video_token_id": 91}),
    "InternVL": (
        {**EYES, "image_size": [16, 16], "patch_size": [8, 8]},
        {"model_type": "qwen2"},
        {"image_token_id": 90},
    ),
}


def make(name: str) -> PreTrainedModel:
    vision, text, own = CLASSES[name]
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(vision_config=vision, text_config={**TEXT, **text}, **own)
    return families.spread(getattr(transformers, f"{name}ForConditionalGeneration")(config))


def both(model: PreTrainedModel, inputs: dict[str, Any], **settings: Any) -> tuple[list[Any], list[Any]]:
    """What ``generate`` gives by itself and with specdec."""
    settings = {"max_new_tokens": NUM_NEW, "do_sample": False, "pad_token_id": 0, **settings}
    own = model.generate(**inputs, **settings)
    return own.tolist(), model.generate(**inputs, **settings, custom_generate=SPECDEC).tolist()


@pytest.mark.parametrize("name", CLASSES)
def test_text_alone_is_generates_own(name: str) -> None:
    model = make(name)
    for num_rows in (1, 3):
        own, drafted = both(model, batch(num_rows))
        assert drafted == own, f"{num_rows} rows"
        assert len(own[0]) == batch(1)["input_ids"].shape[1] + NUM_NEW


@pytest.mark.parametrize(("name", "types"), [("Qwen2VL", "mm_token_type_ids"), ("Gemma3", "token_type_ids")])
def test_what_a_processor_adds_to_text_alone_is_accepted(name: str, types: str) -> None:
    model, inputs = make(name), batch(1)
    own, drafted = both(model, {**inputs, types: torch.zeros_like(inputs["input_ids"])})
    assert drafted == own
    marked = torch.zeros_like(inputs["input_ids"])
    marked[0, 3:6] = 1  # Gemma's tokens of one image see one another
    own, drafted = both(model, {**inputs, types: marked})
    assert drafted == own


def test_token_types_of_other_models_are_refused() -> None:
    model, inputs = families.make(*families.TREES["gpt2"]), batch(1)
    types = torch.zeros_like(inputs["input_ids"])  # GPT-2 adds an embedding for each
    with pytest.raises(specdec.RequestError, match="doesn't read token_type_ids"):
        model.generate(**inputs, token_type_ids=types, max_new_tokens=4, pad_token_id=0, custom_generate=SPECDEC)


def with_an_image(name: str) -> dict[str, torch.Tensor]:
    inputs = batch(1)
    if name == "Llava":
        inputs["input_ids"][0, 2:6] = 90
        return {**inputs, "pixel_values": torch.rand(1, 3, 16, 16)}
    inputs["input_ids"][0, 2:6] = torch.tensor([92, 90, 93, 5])
    types = (inputs["input_ids"] == 90).long()
    grid = torch.tensor([[1, 2, 2]])
    return {**inputs, "mm_token_type_ids": types, "pixel_values": torch.rand(4, 96), "image_grid_thw": grid}


@pytest.mark.parametrize("name", ["Llava", "Qwen2VL"])
def test_an_image_is_read_and_text_after_it_is_decoded(name: str) -> None:
    model, inputs = make(name), with_an_image(name)
    own, drafted = both(model, inputs)
    assert drafted == own
    assert both(model, {**inputs, "pixel_values": -inputs["pixel_values"]})[1] != own
    own, drafted = both(model, batch(1))
    assert drafted == own


def test_positions_of_several_axes_are_refused_where_they_arent_texts() -> None:
    model, inputs = make("Qwen2VL"), batch(1)
    positions = torch.arange(inputs["input_ids"].shape[1]).expand(4, 1, -1).clone()
    own, drafted = both(model, {**inputs, "position_ids": positions})
    assert drafted == own
    positions[2, 0, 5:] += 1
    with pytest.raises(specdec.RequestError, match="differ by axis"):
        model.generate(**inputs, position_ids=positions, max_new_tokens=4, custom_generate=SPECDEC)


def test_beams_are_refused_before_an_image_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("Llava")
    monkeypatch.setattr(type(model.model), "get_image_features", None)
    with pytest.raises(specdec.RequestError, match="give num_beams=1"):
        model.generate(**with_an_image("Llava"), num_beams=3, custom_generate=SPECDEC)
    model.generation_config.num_beams = 4
    with pytest.raises(specdec.RequestError, match="num_beams=4"):
        model.generate(**with_an_image("Llava"), custom_generate=SPECDEC)
