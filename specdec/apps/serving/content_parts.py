"""The parts of a message's content: text, and images and recordings that the request itself holds."""

from collections.abc import Mapping
from typing import Any

from specdec.inputs.chat_templates import text_of_part
from specdec.inputs.messages import is_data, kind_of, url_of

Content = str | list[dict[str, Any]]
_MEDIA = "url", "image_url", "data"  # fields of parts whose text is an image or a recording
_LOGGED = 40  # characters of one


def content_of(parts: list[Any]) -> Content:
    """Return a message's parts as one text, or with images and recordings as a list in OpenAI's form.

    Raises:
        ValueError: for another part, with what to give.
    """
    plain = [part_of(part) for part in parts]
    texts = [part["text"] for part in plain if part["type"] == "text"]
    return "".join(texts) if len(texts) == len(plain) else plain


def part_of(part: Any) -> dict[str, Any]:
    """Return one part, checked but not decoded; raises as ``content_of``."""
    if (text := text_of_part(part)) is not None:
        return {"type": "text", "text": text}
    match kind_of(part):
        case "image_url" | "input_image":
            return {"type": "image_url", "image_url": {"url": _data_url(part)}}
        case "input_audio":
            given = part.get("input_audio")
            data, format_ = (given.get("data"), given.get("format")) if isinstance(given, Mapping) else (None, None)
            if not isinstance(data, str) or format_ != "wav":
                raise ValueError('a recording is sent as {"data": …, "format": "wav"}, in base64')
            return {"type": "input_audio", "input_audio": {"data": data}}
    raise ValueError('each part must be {"type": "text", "text": …}, or an image_url or input_audio')


def _data_url(part: Mapping[str, Any]) -> str:
    url = url_of(part)
    if not is_data(url):
        raise ValueError("this server fetches no images: send them as data: URLs, data:image/png;base64,…")
    return url


def text_of(content: Content) -> str:
    """Return the text of a content."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def without_media(body: Any) -> Any:
    """Return a request's body as it is logged: of images and recordings their beginning alone."""
    if isinstance(body, list):
        return [without_media(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {
        name: f"{value[:_LOGGED]}… ({len(value)} characters)"
        if name in _MEDIA and isinstance(value, str) and len(value) > _LOGGED
        else without_media(value)
        for name, value in body.items()
    }
