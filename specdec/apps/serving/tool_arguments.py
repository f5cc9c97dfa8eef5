"""Arguments of tool calls in a conversation: OpenAI's clients send JSON text, but chat templates expect mappings.

The text is a model's, and so is any JSON or none: a conversation goes on after a call that was cut or is malformed.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from specdec.apps.serving.body_parsing import check_count
from specdec.apps.serving.errors import ApiError, invalid


def with_parsed_arguments(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a message with the arguments of its tool calls as mappings, which is transformers' convention.

    Args:
        index: the message's index, for errors.

    Raises:
        ApiError: if a call isn't an object, or its arguments are neither text nor an object.
    """
    parsed, place = dict(message), f"messages[{index}]"
    if (calls := parsed.get("tool_calls")) is not None:
        if not isinstance(calls, list):
            raise invalid(f"{place}.tool_calls", "give a list of calls")
        parsed["tool_calls"] = [_call(call, f"{place}.tool_calls[{number}]") for number, call in enumerate(calls)]
    if (call := parsed.get("function_call")) is not None:  # the older form, with a single call
        parsed["function_call"] = _function(call, f"{place}.function_call")
    return parsed


def _call(call: Any, place: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise invalid(place, "give an object")
    return {**call, "function": _function(call.get("function"), f"{place}.function")}


def _function(function: Any, place: str) -> dict[str, Any]:
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(place, "give an object with a name and arguments")
    arguments = function.get("arguments")
    parsed = {} if arguments is None else parsed_arguments(arguments, f"{place}.arguments")
    return {**function, "arguments": parsed}


def parsed_arguments(arguments: Any, place: str) -> dict[str, Any]:
    """Return the arguments of a call as a mapping.

    Args:
        place: of the arguments in the request, for errors.

    Raises:
        ApiError: if they are neither text nor an object, or have too many values.
    """
    if isinstance(arguments, str):
        try:
            check_count(arguments.encode("utf-8", "surrogatepass"))
        except ApiError as error:
            raise invalid(place, str(error)) from None
        return _object_of(arguments)
    if not isinstance(arguments, Mapping):
        raise invalid(place, "give a JSON object, or its text")
    return dict(arguments)


def _object_of(text: str) -> dict[str, Any]:
    """Return the object that a text is, or the part of it in a cut answer; any other text by the name "arguments"."""
    for read in (json.loads, _cut):
        with suppress(ValueError, RecursionError):
            if isinstance(found := read(text), dict):
                return found
    return {"arguments": text} if text.strip() else {}


def _cut(text: str) -> Any:
    """Return the part of a value in a text that ends before it does; None for one that goes on after it."""
    with suppress(ValueError):
        json.JSONDecoder().raw_decode(text.lstrip())
        return None
    return from_json(text, allow_partial="trailing-strings")
