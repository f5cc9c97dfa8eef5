"""The place in a JSON schema that a library refuses, where the library doesn't say."""

import time
from collections.abc import Callable
from typing import Any

from specdec.constraints.matcher import GrammarError
from specdec.constraints.schema_check import inner_schemas
from specdec.errors import RequestError

_MOST_SECONDS = 1.0
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = " while processing "  # then the references that led to the refusal


def place_of_refusal(schema: Any, reason: str, start: Callable[[Any, float], object]) -> str:
    """Return the place of the innermost schema that is refused alone, for the same reason.

    Args:
        start: compiles a schema within some seconds, and raises GrammarError if the library refuses it.
    """
    shared = {name: schema[name] for name in _DEFINITIONS if isinstance(schema, dict) and name in schema}
    place, found, deadline = "#", schema, time.monotonic() + _MOST_SECONDS
    while isinstance(found, dict):
        for inner_place, inner in inner_schemas(place, found):
            left = deadline - time.monotonic()
            if left <= 0:
                return place
            alone = shared | inner if isinstance(inner, dict) else inner
            if _refusal_of(alone, start, left) == _without_references(reason):
                place, found = inner_place, inner
                break
        else:
            return place
    return place


def _refusal_of(schema: Any, start: Callable[[Any, float], object], seconds: float) -> str | None:
    try:
        start(schema, seconds)
    except GrammarError as error:
        return _without_references(error.reason)
    except RequestError:  # for the time that it takes
        return None
    return None


def _without_references(reason: str) -> str:
    return reason.partition(_REFERENCES)[0]
