"""Chat messages with images and audio, through the model's processor."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import RequestError, in_one_line
from specdec.inputs.chat_templates import (
    template_variables,
    text_of_part,
    with_defined_fields,
    with_parts_if_needed,
)
from specdec.inputs.limits import MOST_BYTES
from specdec.inputs.pictures import Pictures
from specdec.inputs.processor import ProcessorOutput
from specdec.inputs.wav import samples_of

_AUDIO = {"audio", "input_audio"}
_IMAGES = {"image", "image_url", "input_image"}
_MEDIA = {*_IMAGES, *_AUDIO, "video"}
_READERS = (  # what they are called, their parts' types, and the attributes of processors that read them
    ("audio", _AUDIO, ("feature_extractor", "audio_processor")),
    ("images", _IMAGES, ("image_processor", "video_processor")),
    ("videos", {"video"}, ("video_processor",)),
)
_OF_TEMPLATES = {"tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"}
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
        template: options of the chat template. Those that it doesn't read have no effect, as in text: transformers
            would pass them to the processor, which may fetch what they name.

    Raises:
        RequestError: without a processor, or if the processor rejects the messages.
    """
    if processor is None:
        raise RequestError(
            "the messages have images or audio, and the model came without its processor: save it into the model's "
            "folder, or give it in the tokenizer's place: Generator(model, AutoProcessor.from_pretrained(…))"
        )
    _check_kinds({kind_of(part) for message in messages for part in parts_of(message)}, processor)
    pictures = Pictures()
    plain = [_as_transformers_reads(message, processor, pictures) for message in with_defined_fields(messages)]
    is_continued = isinstance(messages[-1], Mapping) and messages[-1].get("role") == "assistant"
    options = {"add_generation_prompt": not is_continued, "continue_final_message": is_continued, **template}
    try:
        given = options.get("chat_template") or getattr(processor, "chat_template", None)
        known = _OF_TEMPLATES | template_variables(given)
        read = {name: value for name, value in options.items() if name in known}
        plain = with_parts_if_needed(plain, processor, read)
        encoded = processor.apply_chat_template(plain, tokenize=True, return_dict=True, return_tensors="pt", **read)
    except Exception as error:  # templates and processors run third-party code
        raise RequestError(f"{type(processor).__name__} rejected the messages: {in_one_line(error)}") from error
    return ProcessorOutput.of(encoded)


def _check_kinds(kinds: set[str], processor: Any) -> None:
    """Refuse what a processor would leave out without a word."""
    for name, of_name, parts in _READERS:
        if kinds & of_name and all(getattr(processor, part, None) is None for part in parts):
            raise RequestError(f"{type(processor).__name__} takes no {name}: use a model that does")


def _as_transformers_reads(message: Any, processor: Any, pictures: Pictures) -> Any:
    parts = parts_of(message)
    if not parts:
        return message
    return {**message, "content": [_part(part, processor, pictures) for part in parts]}


def _part(part: Any, processor: Any, pictures: Pictures) -> Any:
    kind = kind_of(part)
    if kind in {"image_url", "input_image"}:
        url = url_of(part)
        if not is_data(url):
            return {"type": "image", "url": url}
        return {"type": "image", "image": pictures.read(_bytes_of_url(url))}
    if kind == "input_audio":
        given = part.get("input_audio")
        data = given.get("data") if isinstance(given, Mapping) else None
        return {"type": "audio", "audio": samples_of(_decoded(data), sampling_rate_of(processor))}
    if kind in _MEDIA:
        return part
    if (text := text_of_part(part)) is None:
        raise RequestError(f"a message has a part that is no text, image or recording: {kind or type(part).__name__}")
    return {"type": "text", "text": text}


def url_of(part: Mapping[str, Any]) -> str:
    """Return the URL of an image, in OpenAI's older or newer form; "" if it has none."""
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    return url if isinstance(url, str) else ""


def is_data(url: str) -> bool:
    """Return True for a ``data:`` URL, whose image stands in the URL itself."""
    return url[: len(_DATA)].lower() == _DATA


def _bytes_of_url(url: str) -> bytes:
    """Return the bytes of a ``data:`` URL."""
    head, _, body = url.partition(",")
    if not head.endswith(";base64"):
        raise RequestError("an image's data: URL must be in base64: data:image/png;base64,…")
    return _decoded(body)


def _decoded(text: Any) -> bytes:
    if not isinstance(text, str):
        raise RequestError("a recording has no data: give {'data': …, 'format': 'wav'} in base64")
    if len(text) * 3 // 4 > MOST_BYTES:
        raise RequestError(f"an image or recording has more than {MOST_BYTES >> 20} MB: give a smaller one")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("an image or recording isn't valid base64") from error


def sampling_rate_of(processor: Any) -> int:
    """Return the samples per second that a processor expects."""
    return int(getattr(getattr(processor, "feature_extractor", None), "sampling_rate", 16_000))
