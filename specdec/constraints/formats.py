"""Formats of JSON schemas that the library allows more texts of than exist.

llguidance allows 29 February in every year, the year 0, and a leap second in every minute. Patterns beside the format
exclude them, and what Python's ``datetime`` doesn't read: leap seconds and the small letters t and z.
"""

import copy
from collections.abc import Mapping
from typing import Any

from specdec.constraints.schema_check import schemas_by_place

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "^(?:[1-9]|0[1-9]|00[1-9]|000[1-9])",
    f"^(?:[0-9]{{4}}-(?:0[13-9]|1|02-(?:[01]|2[0-8]))|{_LEAP_YEAR}-02-29)",
)
_PATTERNS: Mapping[Any, tuple[str, ...]] = {
    "date": _DATE,
    "date-time": (*_DATE, "^[-0-9]{10}T[0-9]{2}:[0-9]{2}:[0-5][^z]*$"),
    "time": ("^[0-9]{2}:[0-9]{2}:[0-5][^z]*$",),
}


def with_exact_formats(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Return a checked schema as a mapping, in which dates and times are restricted to those that exist."""
    whole = copy.deepcopy(dict(schema)) if isinstance(schema, Mapping) else {"allOf": [schema]}
    for each in schemas_by_place(whole).values():
        if isinstance(each, dict) and (patterns := _PATTERNS.get(each.get("format"))):
            each["allOf"] = [*each.get("allOf", ()), *({"pattern": pattern} for pattern in patterns)]
    return whole
