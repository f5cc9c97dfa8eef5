"""Small random models of families with images or audio in a decoder's text, and prompts as their processors give them.

A prompt is a dictionary of a model's inputs. Media differ by their pixels or sounds; where a family allows it, also by
their size, so that rows have different numbers of placeholders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.support import families

Inputs = dict[str, torch.Tensor]
Medium = tuple[list[int], Inputs]  # the ids that stand for an image or recording, and its tensors

IMAGE, VIDEO, START, END, OTHER = 90, 91, 92, 93, 94
TEXT = {**families.SMALL, "max_position_embeddings": 512}
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PATCHES = {**TOWER, "image_size": 16, "patch_size": 8}
PIXTRAL = {**TOWER, "model_type": "pixtral", "image_size": 16, "patch_size": 4, "head_dim": 8}
QWEN = {"depth": 1, "num_heads": 2, "patch_size": 4, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32}
QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
GLM_IDS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO, "image_start_token_id": START, "image_end_token_id": END,
    "video_start_token_id": 95, "video_end_token_id": 94,
}  # fmt: skip
AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
MIXED = {
    "head_dim": 8, "sliding_window": families.WINDOW, "layer_types": families.MIXED * 2, "num_hidden_layers": 4
}  # fmt: skip
MEL = {"num_mel_bins": 8, "max_source_positions": 8}


def squares(num: int, side: int = 16, **more: torch.Tensor) -> Callable[[torch.Generator], Medium]:
    """Images of one size, each with ``num`` placeholders."""

    def medium(rng: torch.Generator) -> Medium:
        return [IMAGE] * num, {"pixel_values": torch.randn(1, 3, side, side, generator=rng), **more}

    return medium


def grids(rng: torch.Generator, size: int = 96, surrounded: bool = True) -> Medium:
    """Images of several sizes, as rows of patches, four of which become one placeholder's features."""
    height, width = (2 * int(n) for n in torch.randint(2, 4, (2,), generator=rng))
    ids = [IMAGE] * (height * width // 4)
    pixels = torch.randn(height * width, size, generator=rng)
    grid = torch.tensor([[1, height, width]])
    return [START, *ids, END] if surrounded else ids, {"pixel_values": pixels, "image_grid_thw": grid}


def sounds(num: int, frames: int = 16, mask: str = "", mask_frames: int = 0) -> Callable[[torch.Generator], Medium]:
    """Recordings of one length, each with ``num`` placeholders."""

    def medium(rng: torch.Generator) -> Medium:
        given = {"input_features": torch.randn(1, 8, frames, generator=rng)}
        return [IMAGE] * num, given | ({mask: torch.ones(1, mask_frames or frames, dtype=torch.long)} if mask else {})

    return medium


@dataclass(frozen=True)
class Family:
    """A multimodal class.

    Attributes:
        name: its class's, before "ForConditionalGeneration".
        tower, text, own: the arguments of its configuration's parts, and its own.
        medium: returns an image or recording.
        types: the name of its processor's token types, 1 at placeholders; or "".
        marks_media: False if the types are 0 in the whole prompt.
        is_nested: its images are ``(rows, images, …)``, padded with black ones.
        is_strip: its images are one after another, ``(1, channels, height, widths)``.
        is_audio: its tower hears.
        most_media: in a prompt.
        takes_trees: False if it's decoded with chains.
    """

    name: str
    tower: Mapping[str, Any]
    text: Mapping[str, Any]
    own: Mapping[str, Any]
    medium: Callable[[torch.Generator], Medium]
    types: str = ""
    marks_media: bool = True
    is_nested: bool = False
    is_strip: bool = False
    is_audio: bool = False
    takes_trees: bool = True
    most_media: int = 8


def llava(name: str, tower: Mapping[str, Any], text: Mapping[str, Any], num: int = 4, **own: Any) -> Family:
    return Family(name, tower, text, {"image_token_id": IMAGE, **own}, squares(num))


def images_of_idefics(rng: torch.Generator) -> Medium:
    return [IMAGE], {"pixel_values": torch.randn(1, 1, 3, 16, 16, generator=rng)}


def tiles(num: int) -> Callable[[torch.Generator], Medium]:
    """An image as two tiles and a smaller copy, whose features a model joins."""

    def medium(rng: torch.Generator) -> Medium:
        return [IMAGE] * num, {
            "pixel_values": torch.randn(1, 3, 3, 16, 16, generator=rng),
            "image_sizes": torch.tensor([[16, 32]]),
        }

    return medium


def patches_of_paddle(rng: torch.Generator) -> Medium:
    ids, tensors = grids(rng, 48)
    return ids, {**tensors, "pixel_values": tensors["pixel_values"].view(-1, 3, 4, 4)}


def patches_of_gemma4(rng: torch.Generator) -> Medium:
    """Two by two soft tokens, of two by two patches each."""
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1).view(1, 16, 2)
    return [IMAGE] * 4, {"pixel_values": torch.rand(1, 16, 48, generator=rng), "image_position_ids": places}


def patches_of_hunyuan(rng: torch.Generator) -> Medium:
    """Features of four patches each, with one at the end of each row and one at both ends of the image."""
    _, tensors = grids(rng, 48)
    _, height, width = tensors["image_grid_thw"][0].tolist()
    return [START, *[IMAGE] * (height // 2 * (width // 2 + 1) + 2), END], tensors


def crops_of_molmo(rng: torch.Generator) -> Medium:
    """One crop of four patches, each of which is a token, and one token that pools two of them."""
    pooling = torch.tensor([[0, 1], [0, -1], [1, -1], [2, -1], [3, -1]])
    return [IMAGE] * 5, {
        "pixel_values": torch.randn(1, 4, 192, generator=rng),
        "image_token_pooling": pooling,
        "image_grids": torch.tensor([[1, 1, 2, 2]]),
        "image_num_crops": torch.tensor([1]),
    }


def patches_of_lfm(rng: torch.Generator) -> Medium:
    return [IMAGE], {
        "pixel_values": torch.randn(1, 4, 192, generator=rng),
        "spatial_shapes": torch.tensor([[2, 2]]),
        "pixel_attention_mask": torch.ones(1, 4, dtype=torch.long),
    }


def patches_of_minicpm(rng: torch.Generator) -> Medium:
    """A strip of 4 × 4 patches: one token for each sixteen."""
    return [IMAGE], {"pixel_values": torch.randn(1, 3, 4, 64, generator=rng), "target_sizes": torch.tensor([[4, 4]])}


def sounds_of_granite(rng: torch.Generator) -> Medium:
    return [IMAGE] * 3, {
        "input_features": torch.randn(1, 15, 8, generator=rng),
        "input_features_mask": torch.ones(1, 3, dtype=torch.bool),
    }


SIZES = torch.tensor([[16, 16]])
SIGLIP = {**PATCHES, "model_type": "siglip_vision_model", "vision_use_head": False}
CLIP = {**PATCHES, "model_type": "clip_vision_model"}
LLAMA, QWEN2 = {"model_type": "llama"}, {"model_type": "qwen2"}
VL = {"rope_parameters": AXES}
WHISPER = {**TOWER, **MEL, "intermediate_size": 64}

FAMILIES: dict[str, Family] = {
    "llava": llava("Llava", CLIP, LLAMA),
    "vipllava": llava("VipLlava", CLIP, LLAMA, vision_feature_layers=[-1, -1]),
    "internvl": llava("InternVL", {**TOWER, "image_size": [16, 16], "patch_size": [4, 4]}, QWEN2),
    "aya_vision": llava("AyaVision", {**SIGLIP, "patch_size": 4}, {"model_type": "cohere2", **MIXED}),
    "cohere2_vision": llava("Cohere2Vision", {**SIGLIP, "patch_size": 4}, {"model_type": "cohere2", **MIXED},
                            alignment_intermediate_size=32),
    "got_ocr2": Family("GotOcr2", {**TOWER, "mlp_dim": 32, "image_size": 64, "patch_size": 8, "output_channels": 8,
                                   "window_size": 2, "global_attn_indexes": [0]}, QWEN2, {"image_token_id": IMAGE},
                       squares(4, 64)),
    "deepseek_vl": llava("DeepseekVL", SIGLIP, LLAMA),
    "ovis2": llava("Ovis2", {**TOWER, "image_size": 16, "patch_size": 8, "vocab_size": 24,
                             "num_visual_indicator_tokens": 5}, QWEN2, visual_indicator_token_ids=[80, 81, 82, 83, 84],
                   vocab_size=96, hidden_size=32),
    "aria": llava("Aria", {**PATCHES, "model_type": "idefics3_vision"},
                  {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}, num=2,
                  projector_patch_to_query_dict={4: 2}),
    "llava_next": Family("LlavaNext", CLIP, LLAMA, {"image_token_id": IMAGE, "image_grid_pinpoints": [[16, 32]]},
                         tiles(14)),
    "llava_onevision": Family(
        "LlavaOnevision", SIGLIP, QWEN2,
        {"image_token_id": IMAGE, "video_token_id": VIDEO, "image_grid_pinpoints": [[16, 32]]}, tiles(14)),
    "mistral3": Family("Mistral3", PIXTRAL, {"model_type": "mistral", "head_dim": 8},
                       {"image_token_id": IMAGE, "spatial_merge_size": 2}, squares(4, image_sizes=SIZES)),
    "lighton_ocr": Family("LightOnOcr", PIXTRAL, {"model_type": "qwen3", "head_dim": 8},
                          {"image_token_id": IMAGE, "spatial_merge_size": 2}, squares(4, image_sizes=SIZES)),
    "smolvlm": Family("SmolVLM", PATCHES, LLAMA, {"image_token_id": IMAGE, "scale_factor": 2}, images_of_idefics,
                      is_nested=True),
    "idefics3": Family("Idefics3", PATCHES, LLAMA, {"image_token_id": IMAGE, "scale_factor": 2}, images_of_idefics,
                       is_nested=True),
    "idefics2": Family("Idefics2", PATCHES, {"model_type": "mistral"},
                       {"image_token_id": IMAGE, "perceiver_config": {
                           "hidden_size": 32, "resampler_n_latents": 1, "resampler_depth": 1, "resampler_n_heads": 2,
                           "resampler_head_dim": 8, "num_key_value_heads": 1}}, images_of_idefics, is_nested=True),
    "qwen2_vl": Family("Qwen2VL", {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4,
                                   "mlp_ratio": 2}, VL, QWEN_IDS, grids, "mm_token_type_ids"),
    "qwen2_5_vl": Family("Qwen2_5_VL", {**QWEN, "window_size": 16, "fullatt_block_indexes": [0]}, VL, QWEN_IDS, grids,
                         "mm_token_type_ids"),
    "qwen3_vl": Family("Qwen3VL", {**QWEN, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
                       {**VL, "head_dim": 8}, QWEN_IDS, grids, "mm_token_type_ids"),
    "qwen3_5": Family("Qwen3_5", {**QWEN, "num_position_embeddings": 16},
                      {**families.DELTA, "head_dim": 8, "linear_num_key_heads": 2,
                       "rope_parameters": {**AXES, "partial_rotary_factor": 1.0}},
                      QWEN_IDS, grids, "mm_token_type_ids", takes_trees=False),
    "glm4v": Family("Glm4v", {**QWEN, "image_size": 16}, VL, GLM_IDS, grids, "mm_token_type_ids"),
    "glm_ocr": Family("GlmOcr", {**QWEN, "image_size": 16}, {**VL, "head_dim": 8}, GLM_IDS, grids, "mm_token_type_ids"),
    "paddleocr_vl": Family("PaddleOCRVL", {**TOWER, "image_size": 16, "patch_size": 4}, {**VL, "head_dim": 8},
                           QWEN_IDS, patches_of_paddle, "mm_token_type_ids"),
    "ernie4_5_vl": Family(
        "Ernie4_5_VLMoe", {**QWEN, "hidden_size": 16},
        {"rope_parameters": {**AXES, "mrope_section": [1, 1, 2]}, "moe_intermediate_size": [16, 16],
         "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1},
        GLM_IDS, lambda rng: grids(rng, 48), "mm_token_type_ids"),
    "gemma3": Family("Gemma3", PATCHES, MIXED, {"image_token_id": IMAGE, "mm_tokens_per_image": 4}, squares(4),
                     "token_type_ids"),
    "paligemma": Family("PaliGemma", {**PATCHES, "projection_dim": 32, "model_type": "siglip_vision_model"},
                        {"model_type": "gemma", "head_dim": 8}, {"image_token_id": IMAGE, "projection_dim": 32},
                        squares(4), "token_type_ids", marks_media=False),
    "qwen2_audio": Family(
        "Qwen2Audio", {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, **MEL},
        QWEN2, {"audio_token_id": IMAGE}, sounds(4, mask="feature_attention_mask"), is_audio=True),
    "voxtral": Family("Voxtral", WHISPER, LLAMA, {"audio_token_id": IMAGE}, sounds(2), is_audio=True),
    "audioflamingo3": Family("AudioFlamingo3", WHISPER, QWEN2, {"audio_token_id": IMAGE},
                             sounds(4, mask="input_features_mask"), is_audio=True),
    "glmasr": Family("GlmAsr", {**TOWER, "num_mel_bins": 8, "max_position_embeddings": 64, "intermediate_size": 64},
                     LLAMA, {"audio_token_id": IMAGE}, sounds(2, mask="input_features_mask"), is_audio=True),
    "granite_speech": Family(
        "GraniteSpeech", {}, {"model_type": "granite"},
        {"encoder_config": {"input_dim": 8, "num_layers": 1, "hidden_dim": 16, "feedforward_mult": 2, "num_heads": 2,
                            "dim_head": 8, "output_dim": 8, "context_size": 8, "max_pos_emb": 8},
         "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 16, "num_hidden_layers": 1,
                              "num_attention_heads": 2, "intermediate_size": 32, "encoder_hidden_size": 16,
                              "cross_attention_frequency": 1},
         "audio_token_id": IMAGE, "has_lora_adapter": False, "downsample_rate": 5, "window_size": 15},
        sounds_of_granite, is_audio=True),
    "qwen3_asr": Family(
        "Qwen3ASR", {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
                     "num_mel_bins": 8, "n_window": 50, "n_window_infer": 100, "output_dim": 32,
                     "downsample_hidden_size": 8},
        {"model_type": "qwen3", "head_dim": 8}, {"audio_token_id": IMAGE, "eos_token_id": 95, "pad_token_id": 0},
        sounds(13, 100, mask="input_features_mask"), is_audio=True),
    "gemma4": Family(
        "Gemma4", {**TOWER, "num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 2, "patch_size": 4,
                   "position_embedding_size": 16},
        {**MIXED, "use_bidirectional_attention": "vision", "vocab_size_per_layer_input": 96,
         "hidden_size_per_layer_input": 8, "global_head_dim": 8},
        {**dict.fromkeys(("audio_config",)), "image_token_id": IMAGE, "video_token_id": VIDEO,
         "audio_token_id": 89, "boi_token_id": START, "eoi_token_id": END}, patches_of_gemma4, "mm_token_type_ids"),
    "hunyuan_vl": Family(
        "HunYuanVL", {**TOWER, "out_hidden_size": 32, "patch_size": 4, "max_image_size": 32, "text_hidden_size": 32},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1, 1]}, "head_dim": 8},
        {"image_token_id": IMAGE, "im_start_id": START, "im_end_id": END, "im_newline_id": 94}, patches_of_hunyuan,
        "mm_token_type_ids"),
    "molmo2": Family(
        "Molmo2", {**TOWER, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, "image_size": [16, 16],
                   "patch_size": 8},
        {"additional_vocab_size": 8, "head_dim": 8},
        {"adapter_config": {"vision_feature_layer": [-1], "hidden_size": 16, "num_attention_heads": 2,
                            "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "text_hidden_size": 32},
         "image_patch_id": IMAGE, "image_start_token_id": START, "image_end_token_id": END,
         "low_res_image_start_token_id": 94, "frame_start_token_id": 95, "frame_end_token_id": 89},
        crops_of_molmo, "mm_token_type_ids", most_media=1),
    "lfm2_vl": Family(
        "Lfm2Vl", {**TOWER, "model_type": "siglip2_vision_model", "num_patches": 16, "patch_size": 8,
                   "vision_use_head": False},
        {"model_type": "lfm2", **families.CONVOLUTION}, {"image_token_id": IMAGE, "projector_hidden_size": 32},
        patches_of_lfm, takes_trees=False),
    "minicpmv4_6": Family(
        "MiniCPMV4_6", {**TOWER, "num_hidden_layers": 2, "image_size": 16, "patch_size": 4, "insert_layer_id": 0},
        {"model_type": "qwen3_5_text", **families.DELTA, "head_dim": 8, "linear_num_key_heads": 2},
        {"image_token_id": IMAGE, "video_token_id": VIDEO, "insert_layer_id": 0, "image_size": 16},
        patches_of_minicpm, is_strip=True, takes_trees=False),
    "qwen2_5_omni": Family(
        "Qwen2_5OmniThinker", {**QWEN, "window_size": 16, "fullatt_block_indexes": [0]}, VL,
        {"image_token_index": IMAGE, "video_token_index": VIDEO, "audio_token_index": 89,
         "vision_start_token_id": START, "vision_end_token_id": END, "audio_start_token_id": 94,
         "audio_end_token_id": 95,
         "audio_config": {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
                          "num_mel_bins": 8, "max_source_positions": 32, "n_window": 8, "output_dim": 32}},
        grids),
}  # fmt: skip


def make(name: str) -> PreTrainedModel:
    """A family's random model, with logits that depend on images and recordings."""
    family = FAMILIES[name]
    torch.manual_seed(7)
    parts = {"audio_config" if family.is_audio else "vision_config": dict(family.tower)} if family.tower else {}
    config = getattr(transformers, f"{family.name}Config")(**parts, text_config={**TEXT, **family.text}, **family.own)
    return families.spread(getattr(transformers, f"{family.name}ForConditionalGeneration")(config))


def prompt(name: str, seed: int, num_media: int = 1, length: int = 20) -> Inputs:
    """A prompt with some images or recordings at random places, and ``length`` tokens of text."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 80, (length,), generator=rng).tolist()
    num_media = min(num_media, FAMILIES[name].most_media)
    places = sorted(torch.randint(2, length - 2, (num_media,), generator=rng).tolist())
    parts: list[int | list[int]] = []
    for number, (start, stop) in enumerate(pairwise([0, *places, length])):
        parts += [ids[start:stop], *([100 * seed + number] if number < num_media else [])]
    return compose(name, *parts)


def compose(name: str, *parts: int | Sequence[int]) -> Inputs:
    """A prompt of tokens, and of images or recordings by their seeds."""
    family, ids, media = FAMILIES[name], list[int](), list[Inputs]()
    for part in parts:
        if isinstance(part, int):
            run, tensors = family.medium(torch.Generator().manual_seed(part))
            ids += run
            media.append(tensors)
        else:
            ids += part
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    return _with_types(family, {**given, **joined(family, media)})


def joined(family: Family, given: Sequence[Inputs]) -> Inputs:
    """The tensors of several media, as one prompt's."""
    dims = {"pixel_values": 1 if family.is_nested else -1 if family.is_strip else 0}
    keys = given[0] if given else ()
    return {key: torch.cat([each[key] for each in given], dims.get(key, 0)) for key in keys}


def _with_types(family: Family, inputs: Inputs) -> Inputs:
    if family.types:
        is_medium = inputs["input_ids"] == IMAGE
        inputs[family.types] = is_medium.long() if family.marks_media else torch.zeros_like(inputs["input_ids"])
    return inputs


def padded(name: str, prompts: Sequence[Inputs]) -> Inputs:
    """A batch of prompts, padded on the left as by a processor."""
    family = FAMILIES[name]
    width = max(each["input_ids"].shape[1] for each in prompts)
    batch: Inputs = {}
    for key in ("input_ids", "attention_mask", family.types):
        if key:
            rows = [each.get(key, torch.ones_like(each["input_ids"])) for each in prompts]
            batch[key] = torch.cat([torch.nn.functional.pad(row, (width - row.shape[1], 0)) for row in rows])
    for key in sorted({key for each in prompts for key in each} - {*batch}):
        held = [each[key] for each in prompts if key in each]
        if family.is_nested:
            empty = held[0][:, :0]
            rows = [each.get(key, empty) for each in prompts]
            most = max(each.shape[1] for each in held)
            held = [torch.cat([row, torch.zeros(1, most - row.shape[1], *row.shape[2:])], 1) for row in rows]
        batch[key] = torch.cat(held, -1 if family.is_strip and key == "pixel_values" else 0)
    return batch
