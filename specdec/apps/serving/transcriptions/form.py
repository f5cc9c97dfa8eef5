"""The body of /v1/audio/transcriptions: a form with a file."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from specdec.apps.serving.errors import ApiError, invalid, of_validation
from specdec.apps.serving.schemas import Body

_MOST_FIELDS = 64
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))""")
_NAME = re.compile(rb'^content-disposition:\s*form-data;.*?\bname="([^"]*)"', re.IGNORECASE | re.MULTILINE)
_LIST = "timestamp_granularities[]"
Number = Annotated[float, BeforeValidator(lambda text: float(text) if isinstance(text, str) else text)]


class TranscriptionForm(Body):
    """The fields of a transcription."""

    model_config = ConfigDict(populate_by_name=True)

    file: bytes = Field(min_length=1)
    model: str
    language: str | None = Field(default=None, max_length=32)
    prompt: str | None = Field(default=None, max_length=4096)
    response_format: Literal["json", "text", "verbose_json"] = "json"
    temperature: Number = Field(default=0.0, ge=0.0, le=1.0)
    timestamp_granularities: list[Literal["segment"]] = Field(default_factory=list, alias="timestamp_granularities[]")
    stream: Literal["false"] | None = None


def check_origin(headers: Mapping[str, str], allowed: tuple[str, ...]) -> None:
    """Refuse a form of another site's page, which browsers send without asking first.

    Raises:
        ApiError: with the page's origin.
    """
    origin = headers.get("origin")
    if origin is not None and origin not in allowed and urlsplit(origin).netloc != headers.get("host"):
        raise ApiError(403, f"Pages of {origin!r} may not use this server: see --cors-origin.", code="unknown_origin")


def parse_form(content: bytes, content_type: str | None) -> TranscriptionForm:
    """Parse the body of a request.

    Raises:
        ApiError: if it is no form, or a field is missing, unknown or invalid.
    """
    found = _BOUNDARY.search(content_type or "")
    if not (content_type or "").lower().startswith("multipart/form-data") or found is None:
        message = "Send the recording as a form: Content-Type: multipart/form-data, with a field named file."
        raise ApiError(400, message, code="invalid_content_type")
    fields: dict[str, Any] = {}
    for name, value in _parts(content, (found[1] or found[2]).encode("latin-1")):
        if name == "file":
            fields[name] = value
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise invalid(name, "give text in UTF-8") from None
        fields[name] = [*fields.get(name, ()), text] if name == _LIST else text
    try:
        return TranscriptionForm.model_validate(fields)
    except ValidationError as error:
        raise of_validation(error) from None


def _parts(content: bytes, boundary: bytes) -> list[tuple[str, bytes]]:
    """Return the names and contents of a form's fields."""
    _, *parts = (b"\r\n" + content).split(b"\r\n--" + boundary, _MOST_FIELDS + 1)
    if not parts or not parts[-1].startswith(b"--"):
        raise ApiError(400, f"The form is cut, or has more than {_MOST_FIELDS} fields.", code="invalid_body")
    found = []
    for part in parts[:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name is None:
            raise ApiError(400, "A field of the form has no name.", code="invalid_body")
        found.append((name[1].decode("utf-8", "replace"), value))
    return found
