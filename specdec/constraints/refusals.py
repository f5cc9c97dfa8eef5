"""A search for the cause of a library's refusal: the place in a JSON schema, or the part of a grammar."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.matcher import LEAST_SECONDS, BusyError, GrammarError, SlowGrammarError
from specdec.constraints.schema_check import inner_schemas
from specdec.errors import RequestError

_MOST_SECONDS = 1.0
_MOST_SECONDS_FOR_PARTS = 2.0
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = " while processing "  # then the references that led to the refusal


class SchemaPart(Protocol):
    """A constraint that may be a part of another one."""

    def start(self, vocabulary: Vocabulary, seconds: float) -> ConstraintState:
        """Compile the constraint within some seconds."""


def refused_part(parts: Iterable[tuple[str, SchemaPart]], vocabulary: Vocabulary) -> tuple[str, RequestError] | None:
    """Return the name and the error of the first part that is refused by itself; None if none is found in two seconds.

    Args:
        parts: by name.
    """
    deadline = time.monotonic() + _MOST_SECONDS_FOR_PARTS
    for name, part in parts:
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return None
        try:
            part.start(vocabulary, left)
        except (SlowGrammarError, BusyError):  # which say nothing about the part
            return None
        except RequestError as error:
            return name, error
    return None


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
            if left < LEAST_SECONDS:
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
