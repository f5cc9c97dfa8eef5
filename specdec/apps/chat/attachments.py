"""Files that go with a question: images and recordings, as parts of a chat message."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from specdec.errors import RequestError
from specdec.inputs.limits import MOST_BYTES
from specdec.inputs.pictures import Pictures
from specdec.inputs.wav import samples_of

Part = dict[str, Any]
_ANY_RATE = 16_000


def attachments(images: Iterable[str], recordings: Iterable[str]) -> tuple[Part, ...]:
    """Return files as parts of a message; raises as ``attachment``."""
    return (
        *(attachment("image", path) for path in images),
        *(attachment("audio", path) for path in recordings),
    )


def attachment(kind: Literal["image", "audio"], path: str) -> Part:
    """Return a file as a part of a message, which holds its content.

    Raises:
        RequestError: for a URL, and for a file that can't be read, or isn't an image or recording within the limits.
    """
    if "://" in path:
        raise RequestError(f"{path}: give a file, since nothing is fetched")
    content = _content(path)
    data = base64.b64encode(content).decode()
    try:
        if kind == "audio":
            samples_of(content, _ANY_RATE)
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        Pictures().read(content)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    return {"type": "image_url", "image_url": {"url": f"data:image/*;base64,{data}"}}


def _content(path: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, RuntimeError) as error:
        raise RequestError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MOST_BYTES:
        raise RequestError(f"{path} has more than {MOST_BYTES >> 20} MB: give a smaller file")
    return content
