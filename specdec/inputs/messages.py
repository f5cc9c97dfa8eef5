"""Chat messages with images and audio, through the model's processor."""

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import RequestError, in_one_line
from specdec.inputs.processor import ProcessorOutput

_MEDIA = {"image", "image_url", "input_image", "audio", "input_audio", "video"}
MOST_BYTES = 64 << 20  # of one image or recording, before it is decoded
MOST_PIXELS = 64 << 20
_DATA = "data:"


def has_media(messages: Sequence[Any]) -> bool:
    """Return True if any message has an image, a recording or a video."""
    return any(kind_of(part) in _MEDIA for message in messages for part in parts_of(message))


def parts_of(message: Any) -> Sequence[Any]:
    """Return the parts of a message's content; none if it is text."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()


def kind_of(part: Any) -> str:
    """Return a part's type, "" if it has none."""
    return str(part.get("type", "")) if isinstance(part, Mapping) else ""


def processed(messages: Sequence[Any], processor: Any, template: Mapping[str, Any]) -> ProcessorOutput:
    """Return a conversation as its processor encodes it.

    Images are given as transformers does, ``{"type": "image", "image": picture}`` with a PIL image, a path or a URL, or
    as OpenAI does, ``{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}``; recordings as
    ``{"type": "audio", "audio": samples}`` or ``{"type": "input_audio", "input_audio": {"data": …}}``.

    Args:
        template: options of the chat template.

    Raises:
        RequestError: without a processor, or if the processor rejects the messages.
    """
    if processor is None:
        raise RequestError(
            "the messages have images or audio, which need the model's processor in the tokenizer's place: "
            "Generator(model, AutoProcessor.from_pretrained(…))"
        )
    plain = [_as_transformers_reads(message, processor) for message in messages]
    is_continued = isinstance(messages[-1], Mapping) and messages[-1].get("role") == "assistant"
    options = {"add_generation_prompt": not is_continued, "continue_final_message": is_continued, **template}
    try:
        encoded = processor.apply_chat_template(plain, tokenize=True, return_dict=True, return_tensors="pt", **options)
    except Exception as error:  # templates and processors run third-party code
        raise RequestError(f"{type(processor).__name__} rejected the messages: {in_one_line(error)}") from error
    return ProcessorOutput(dict(encoded))


def _as_transformers_reads(message: Any, processor: Any) -> Any:
    parts = parts_of(message)
    if not parts:
        return message
    return {**message, "content": [_part(part, processor) for part in parts]}


def _part(part: Any, processor: Any) -> Any:
    kind = kind_of(part)
    if kind in {"image_url", "input_image"}:
        given = part.get("image_url", "")
        url = given.get("url", "") if isinstance(given, Mapping) else given
        return (
            {"type": "image", "image": picture(_bytes_of_url(url))}
            if url.startswith(_DATA)
            else {"type": "image", "url": url}
        )
    if kind == "input_audio":
        given = part.get("input_audio") or {}
        return {"type": "audio", "audio": samples(_decoded(given.get("data", "")), sampling_rate_of(processor))}
    if kind in {"input_text", "output_text"}:
        return {"type": "text", "text": part.get("text", "")}
    return part


def _bytes_of_url(url: str) -> bytes:
    """Return the bytes of a ``data:`` URL."""
    head, _, body = url.partition(",")
    if not head.endswith(";base64"):
        raise RequestError("an image's data: URL must be in base64: data:image/png;base64,…")
    return _decoded(body)


def _decoded(text: str) -> bytes:
    if len(text) * 3 // 4 > MOST_BYTES:
        raise RequestError(f"an image or recording has more than {MOST_BYTES >> 20} MB: give a smaller one")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("an image or recording isn't valid base64") from error


def picture(content: bytes) -> Any:
    """Return an image file's picture, whose size is checked before it is decoded.

    Raises:
        RequestError: for a file that is damaged, too large, or of an unknown kind.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise RequestError("images need Pillow: pip install pillow") from error
    try:
        image = Image.open(io.BytesIO(content))
        if image.width * image.height > MOST_PIXELS:
            raise RequestError(f"the image has {image.width} x {image.height} pixels: give a smaller one")
        return image.convert("RGB")
    except RequestError:
        raise
    except Exception as error:  # damaged files raise errors of any kind
        raise RequestError(f"the image can't be read: {in_one_line(error)}") from error


def sampling_rate_of(processor: Any) -> int:
    """Return the samples per second that a processor expects."""
    return int(getattr(getattr(processor, "feature_extractor", None), "sampling_rate", 16_000))


def samples(content: bytes, sampling_rate: int) -> Any:
    """Return the samples of a WAV recording, mono, at a rate.

    Raises:
        RequestError: for a file that is damaged, too long, or not a WAV file.
    """
    import numpy as np

    from specdec.inputs.wav import read_wav

    found, rate = read_wav(content)
    if rate == sampling_rate:
        return found
    length = round(len(found) * sampling_rate / rate)
    return np.interp(np.linspace(0, len(found) - 1, length), np.arange(len(found)), found).astype(np.float32)
