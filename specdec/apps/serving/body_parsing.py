"""Parses request bodies to checked objects, off the event loop, and refuses too large ones early.

Time and memory depend on the number of values rather than bytes: Python's JSON parser blocks the interpreter for two
seconds on 900,000 lists of one number. So values are counted before parsing.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from specdec.apps.serving.errors import ApiError, of_validation
from specdec.apps.serving.ignored_fields import CHAT_FIELDS, COMPLETION_FIELDS, without_ignored_fields
from specdec.apps.serving.schemas import ChatBody, CompletionBody

Body = TypeVar("Body", ChatBody, CompletionBody)

_MOST_VALUES = 1 << 20  # mostly token ids
_MOST_STRINGS = 1 << 16
_MOST_CONTAINERS = 1 << 14


def check_content_type(content_type: str | None, content_encoding: str | None) -> None:
    """Refuse a body that isn't declared as JSON.

    This is a security check: a page of another origin can send other types without a CORS preflight request.

    Raises:
        ApiError: with the declared and the required type.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    if main != "application" or not (sub == "json" or sub.endswith("+json")):
        given = f"Content-Type {kind!r}" if kind else "no Content-Type header"
        message = f"The request has {given}: send the body as JSON, with Content-Type: application/json."
        raise ApiError(400, message, code="invalid_content_type")
    if (content_encoding or "identity").strip().lower() != "identity":
        message = f"The request has Content-Encoding {content_encoding!r}: send the body uncompressed."
        raise ApiError(400, message, code="invalid_content_encoding")


def parse(content: bytes, kind: type[Body]) -> Body:
    """Parse the body of a request.

    Raises:
        ApiError: if it isn't JSON, has too many values, or doesn't fit the schema ``kind``; names the invalid field.
    """
    fields = parse_object(content)
    neutral = CHAT_FIELDS if kind is ChatBody else COMPLETION_FIELDS
    try:
        return kind.model_validate(without_ignored_fields(fields, neutral, kind.model_fields))
    except ValidationError as error:
        raise of_validation(error) from None


def parse_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object, after counting its values.

    Raises:
        ApiError: for any other JSON, or too many values.
    """
    check_count(content)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):  # ValueError: of JSON, of its encoding, or of a number of 5,000 digits
        raise ApiError(400, "The body could not be parsed as JSON.", code="invalid_json") from None
    if not isinstance(found, Mapping):
        raise ApiError(400, "The body is not a JSON object.", code="invalid_body")
    return dict(found)


def check_count(content: bytes) -> None:
    """Refuse JSON with more values than a request can need; takes milliseconds.

    Raises:
        ApiError: with the number and the limit.
    """
    # Escapes are removed first, so that every remaining quote begins or ends a string.
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content
    _check_at_most(plain.count(b'"') // 2, _MOST_STRINGS, "strings")
    if _num_containers(plain) <= _MOST_CONTAINERS and plain.count(b",") <= _MOST_VALUES:
        return
    outside = b"".join(plain.split(b'"')[::2])
    _check_at_most(_num_containers(outside), _MOST_CONTAINERS, "lists and objects")
    _check_at_most(outside.count(b","), _MOST_VALUES, "values")


def _num_containers(content: bytes) -> int:
    return content.count(b"[") + content.count(b"{")


def _check_at_most(number: int, most: int, what: str) -> None:
    if number > most:
        raise ApiError(400, f"The body has {number} {what}, and {most} are allowed.", code="too_many_values")
