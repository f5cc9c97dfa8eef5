"""Prompts with images and audio: every strategy's text is that of ``generate``."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import specdec
from specdec import Generator
from specdec.apps.in_transformers import release
from specdec.inputs.processor import ProcessorOutput
from tests.support import families, multimodal
from tests.support.multimodal import FAMILIES, Inputs

LOOKUP, OTHERS = "prompt_lookup:num_matches=2", ("lookahead:N=3,W=3,G=3", "suffix", "auto")
TWO = "autoregressive", LOOKUP
CALL: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
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


def with_lookup() -> Iterator[Any]:
    """Yield all families; by day every second one whose mechanism another has, too: the laws of inputs have all."""
    others = [name for name in FAMILIES if name not in WELL_KNOWN]
    for name in FAMILIES:
        is_for_the_night = name in others and others.index(name) % 2
        yield pytest.param(name, LOOKUP, marks=[pytest.mark.nightly] if is_for_the_night else [])


def with_strategies(drafting: Sequence[str]) -> Iterator[Any]:
    """Yield a family of each mechanism with each strategy, for the night but one of them, which takes turns."""
    for i, name in enumerate(WELL_KNOWN):
        for j, strategy in enumerate(drafting):
            marks = [] if i % len(drafting) == j else [pytest.mark.nightly]
            yield pytest.param(name, strategy, marks=marks)


@pytest.mark.parametrize(("name", "strategy"), [*with_lookup(), *with_strategies(("autoregressive", *OTHERS))])
def test_a_batchs_text_is_generates_for_every_family(name: str, strategy: str) -> None:
    numerics = "fast" if name in ONLY_FAST else "exact"
    check(multimodal.make(name), multimodal.padded(name, prompts_of(name)), (strategy,), numerics)


@pytest.mark.parametrize(("name", "strategy"), [*with_strategies((LOOKUP, "auto"))])
def test_a_single_text_is_generates(name: str, strategy: str) -> None:
    check(multimodal.make(name), multimodal.prompt(name, 1, 2), (strategy,), "fast")


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_what_followed_the_same_words_isnt_drafted_if_it_was_an_image(name: str) -> None:
    inputs = multimodal.compose(name, [5, 6], 1, [7, 8, 9, 5, 6])
    check(multimodal.make(name), inputs, (LOOKUP, "suffix"), "fast")


@pytest.mark.parametrize(("name", "strategy"), [*with_strategies((LOOKUP, *OTHERS))])
def test_a_seed_gives_the_same_sampled_text_by_every_strategy(name: str, strategy: str) -> None:
    model = multimodal.make(name)
    texts = []
    for proposer in ("autoregressive", strategy):
        with Generator(model, proposer=proposer, numerics="exact") as generator:
            given = [*ProcessorOutput(multimodal.padded(name, prompts_of(name))).prompts()]
            found = generator.generate(given, max_new_tokens=12, temperature=1.0, seed=[1, 2, 3], eos_token_id=[])
            texts.append([result.token_ids for result in found])
    assert texts[0] == texts[1]
    assert len({*map(tuple, texts[0])}) == 3


VIDEO = {"pixel_values_videos": torch.randn(32, 96, generator=torch.Generator().manual_seed(2)),
         "video_grid_thw": torch.tensor([[2, 4, 4]])}  # fmt: skip
FRAME = [92, *[multimodal.VIDEO] * 4, 93]


def with_a_video(name: str, image: Inputs) -> Inputs:
    """A prompt of an image, if any, and a video of two frames, as the family's processor writes it."""
    frames = {
        "qwen2_5_vl": [92, *[multimodal.VIDEO] * 8, 93],
        "qwen3_vl": [*FRAME, 13, *FRAME],
        "glm4v": [95, *[92, *[multimodal.IMAGE] * 4, 93] * 2, 94],
    }[name]
    run = image["input_ids"][0].tolist() if image else []
    ids = torch.tensor([[5, 6, *run, *frames, 7, 8, 9]])
    is_video = torch.zeros_like(ids, dtype=torch.bool)
    is_video[0, 2 + len(run) : -3] = True
    types = (ids == multimodal.IMAGE).long() + (ids == multimodal.VIDEO).long() * 2
    types = types + (is_video & (ids == multimodal.IMAGE)).long()
    mask = {"attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}
    return {**image, "input_ids": ids, **mask, **VIDEO}


@pytest.mark.parametrize(("name", "has_image"), [("qwen2_5_vl", True), ("qwen3_vl", True), ("glm4v", False)])
def test_a_videos_text_is_generates(name: str, has_image: bool) -> None:
    image = multimodal.compose(name, 1) if has_image else {}
    check(multimodal.make(name), with_a_video(name, image), TWO, "exact")


def test_an_image_and_a_recording_in_one_prompt() -> None:
    name, hears = "qwen2_5_omni", multimodal.sounds(4, mask="feature_attention_mask")
    inputs = multimodal.compose(name, [5, 6, 7], 1, [8, 9], [89] * 4, [10, 11, 12])
    _, recording = hears(torch.Generator().manual_seed(4))
    check(multimodal.make(name), {**inputs, **recording}, TWO, "exact")


def small(name: str, **configuration: Any) -> PreTrainedModel:
    config = getattr(transformers, f"{name}Config")(**configuration)
    model: PreTrainedModel = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return model.eval()


def test_images_that_arent_read_in_the_place_of_ids_are_refused_by_name() -> None:
    text = {"vocab_size": 96, "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4}
    model = small("Kosmos2", text_config=text, vision_config=multimodal.PATCHES, latent_query_num=4)
    ids, place = torch.arange(5, 15)[None], torch.zeros(1, 10, dtype=torch.long)
    place[0, 2:6] = 1
    images = {"pixel_values": torch.randn(1, 3, 16, 16), "image_embeds_position_mask": place}
    with pytest.raises(specdec.RequestError, match="has no ids that stand for images"):
        model.generate(input_ids=ids, **images, max_new_tokens=4, custom_generate=specdec.custom_generate())


def test_cross_attention_to_images_is_refused_by_name() -> None:
    vision = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_global_layers": 1,
        "attention_heads": 2, "image_size": 16, "patch_size": 8, "max_num_tiles": 1, "vision_output_dim": 32,
        "intermediate_layers_indices": [1], "supported_aspect_ratios": [[1, 1]],
    }  # fmt: skip
    ropes = {"rope_type": "default", "rope_theta": 1e4}
    text = {**multimodal.TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "rope_parameters": ropes}
    model = small("Mllama", vision_config=vision, text_config=text, image_token_index=multimodal.IMAGE)
    images = {
        "pixel_values": torch.randn(1, 1, 1, 3, 16, 16), "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, 4, 1, 1, dtype=torch.long),
    }  # fmt: skip
    ids = torch.tensor([[5, multimodal.IMAGE, 6, 7]])
    with pytest.raises(specdec.RequestError, match="layers that attend to images apart from the text"):
        model.generate(ids, **images, max_new_tokens=4, custom_generate=specdec.custom_generate())
    with Generator(families.spread(model), numerics="fast") as generator:
        found = generator.generate(input_ids=ids, **images, max_new_tokens=4)
    assert "layers that attend to images apart from the text" in str(found[0].error)
