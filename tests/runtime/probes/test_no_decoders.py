"""Models whose own forward isn't a decoder's are refused by the self-test, with what specdec needs."""

from typing import Any

import pytest
import transformers
from transformers import PreTrainedModel

from specdec import Generator, ModelError, RequestError
from tests.support import families

ROBERTA = {**families.MHA, "pad_token_id": 1}
TOWER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
DECODER = {**families.SMALL, "head_dim": 8}


def multimodal(family: str, **arguments: Any) -> PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(**arguments)
    return families.spread(getattr(transformers, f"{family}ForConditionalGeneration")(config))


@pytest.mark.parametrize(
    "model",
    [
        lambda: families.make("RobertaConfig", {**ROBERTA, "is_decoder": True}),
        lambda: families.make("RobertaConfig", {**ROBERTA, "is_decoder": False}),
        lambda: families.make("CamembertConfig", {**ROBERTA, "is_decoder": True}),
        lambda: families.make("BertConfig", {**families.MHA}),
    ],
    ids=["roberta", "roberta-encoder", "camembert", "bert-encoder"],
)
def test_a_model_with_other_positions_or_later_tokens_in_view_is_refused_with_what_is_needed(model: Any) -> None:
    needed = "specdec needs a causal model .* positions from 0 on; an encoder may be loaded with is_decoder=True$"
    with pytest.raises(ModelError, match=f"can't be decoded losslessly: .* allowed 0.001; {needed}") as refused:
        Generator(model())
    assert "\n" not in str(refused.value)


def test_a_model_that_masks_prompts_by_their_token_types_refuses_ids_alone() -> None:
    vision, text = {**TOWER, "model_type": "siglip_vision_model"}, {**DECODER, "model_type": "gemma"}
    model = multimodal("PaliGemma", vision_config=vision, text_config=text, image_token_id=95, projection_dim=32)
    with Generator(model, proposer="jacobi") as generator:
        assert generator.shapes.takes_trees
        with pytest.raises(RequestError, match="reads a prompt by its token types: give the output of its processor"):
            generator.generate([5, 6, 7])


def test_the_remedy_for_an_encoder_is_one() -> None:
    model = families.make("BertConfig", {**families.MHA, "is_decoder": True})
    assert Generator(model, proposer="jacobi").shapes.takes_trees


def test_a_model_that_takes_no_tokens_alone_is_refused_with_what_it_raised_once() -> None:
    vision = {"embed_dim": 32, "image_size": 16, "patch_size": 8, "intermediate_size": 64, "num_hidden_layers": 1}
    arguments = {**families.SMALL, "additional_vocab_size": 0, "vision_config": {**vision, "num_attention_heads": 4}}
    model = transformers.IdeficsForVisionText2Text(transformers.IdeficsConfig(**arguments)).eval()
    with pytest.raises(ModelError, match=r"losslessly: its forward raised ValueError: .*pixel_values"):
        Generator(model)


def llava() -> PreTrainedModel:
    vision = {**TOWER, "model_type": "clip_vision_model", "projection_dim": 32}
    text = {**DECODER, "model_type": "llama"}
    return multimodal("Llava", vision_config=vision, text_config=text, image_token_id=95)


def gemma3() -> PreTrainedModel:
    vision, text = {**TOWER, "model_type": "siglip_vision_model"}, {**DECODER, "model_type": "gemma3_text"}
    text |= {"sliding_window": families.WINDOW, "layer_types": families.MIXED}
    return multimodal("Gemma3", vision_config=vision, text_config=text, image_token_id=95, mm_tokens_per_image=4)


@pytest.mark.parametrize("model", [llava, gemma3])
def test_multimodal_models_that_are_causal_over_text_are_driven_with_trees(model: Any) -> None:
    assert Generator(model(), proposer="jacobi").shapes.takes_trees
