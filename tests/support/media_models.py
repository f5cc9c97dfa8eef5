"""Small random models with images or audio, each with a real processor; and files for them."""

import base64
import copy
import io
import wave
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    T5Config,
    T5ForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.support import encoder_decoders, families
from tests.support.byte_tokenizer import END, trained

SIDE, PATCH = 16, 8
IMAGE, AUDIO = "<image>", "<|AUDIO|>"
_PART = "{% if p.type == 'image' %}<image>{% elif p.type == 'audio' %}<|AUDIO|>{% else %}{{ p.text }}{% endif %}"
PARTS_ALONE = (  # as LLaVA's: text that isn't a part is left out
    "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}" + _PART + "{% endfor %}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> Any:
    """The byte-level tokenizer with the tokens of the template."""
    made = copy.deepcopy(trained())
    made.add_special_tokens({"additional_special_tokens": [IMAGE, AUDIO, "<|user|>", "<|assistant|>"]})
    return made


def _text(vocab_size: int) -> dict[str, Any]:
    return {**families.SMALL, "model_type": "llama", "vocab_size": vocab_size, "max_position_embeddings": 512}


@cache
def llava() -> tuple[PreTrainedModel, Any]:
    """A model with images of 16 x 16 pixels in four patches, and its processor."""
    torch.manual_seed(7)
    words = tokenizer()
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    processor = LlavaProcessor(
        images, words, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=PARTS_ALONE,
    )  # fmt: skip
    eyes = {
        "model_type": "clip_vision_model", "image_size": SIDE, "patch_size": PATCH, "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    }  # fmt: skip
    config = LlavaConfig(
        vision_config=eyes, text_config=_text(len(words)), image_token_index=words.convert_tokens_to_ids(IMAGE)
    )
    return _made(LlavaForConditionalGeneration(config), words), processor


@cache
def qwen2_audio() -> tuple[PreTrainedModel, Any]:
    """A model with recordings of up to two seconds, and its processor."""
    torch.manual_seed(3)
    words = tokenizer()
    ears = WhisperFeatureExtractor(feature_size=8, chunk_length=2, sampling_rate=16_000)
    processor = Qwen2AudioProcessor(ears, words, chat_template=PARTS_ALONE)
    audio = {
        "d_model": 16, "encoder_ffn_dim": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "num_mel_bins": 8,
        "max_source_positions": 100,
    }  # fmt: skip
    config = Qwen2AudioConfig(
        audio_config=audio, text_config=_text(len(words)), audio_token_index=words.convert_tokens_to_ids(AUDIO)
    )
    return _made(Qwen2AudioForConditionalGeneration(config), words), processor


@cache
def t5() -> tuple[PreTrainedModel, Any]:
    """A model that reads text and writes other text, and its tokenizer."""
    torch.manual_seed(5)
    words = tokenizer()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=len(words), decoder_start_token_id=0, **sizes)
    made = T5ForConditionalGeneration(config).eval()
    encoder_decoders.randomise(made)
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = words.eos_token_id, 0
    return made, words


def _made(model: Any, words: Any) -> PreTrainedModel:
    made = families.spread(model)
    for name, parameter in made.named_parameters():
        if "projector" in name:
            parameter.data *= 5  # so that images and recordings decide
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = words.eos_token_id, 0
    return made


def noise(seed: int, width: int = 20, height: int = 30) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(picture: Image.Image) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def data_url(content: bytes, kind: str = "image/png") -> str:
    """A file within a URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    """A file of 16 bits per sample, of samples from -1 to 1."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes((samples * 32768).astype("<i2").tobytes())
    return file.getvalue()


def hum(seed: int, seconds: float = 1.0, rate: int = 16_000) -> np.ndarray:
    """Samples of a recording, which a file of 16 bits keeps as they are."""
    places = np.arange(int(seconds * rate)) / rate
    found = 0.8 * np.sin(2 * np.pi * 200 * seed * places) * (places * 3 % 1 < 0.5)
    return (np.trunc(found * 32768) / 32768).astype(np.float32)


def own_answer(model: PreTrainedModel, processor: Any, messages: list[Any], num_new: int) -> list[int]:
    """The tokens of transformers' own ``generate`` for the processor's output, greedily."""
    encoded = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )
    ids = model.generate(**encoded, max_new_tokens=num_new, do_sample=False)
    return ids[0, encoded["input_ids"].shape[1] :].tolist()
