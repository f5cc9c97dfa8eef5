"""JSON schemas made by hypothesis: satisfiable ones with short values, and any at all."""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

import jsonschema
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Schemas = st.SearchStrategy[Any]

KEYS = st.sampled_from(["name", "größe", "number_of_members", "x", "日付", "a b", 'q"', "back\\slash", "a/b~c", "😀"])
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "duration", "email", "hostname", "uri"]
PATTERNS = ["^[A-Z]{2}-[0-9]+$", "^[а-я]+$", "a|b", "^\\d{2}(:\\d{2})?$", "é", '^[^\\s"]*$']


def objects(values: Schemas, most: int) -> Schemas:
    """Objects with some required properties; the others and further ones are optional."""

    def of(properties: dict[str, Any]) -> Schemas:
        required = st.lists(st.sampled_from(sorted(properties)), unique=True)
        return st.builds(
            lambda required, additional: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": additional,
            },
            required,
            st.sampled_from([False, False, {"type": "boolean"}]),
        )

    return st.dictionaries(KEYS, values, min_size=1, max_size=most).flatmap(of)


def arrays(items: Schemas) -> Schemas:
    """Arrays of up to four items."""
    return st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        items, st.integers(0, 2), st.integers(0, 2),
    )  # fmt: skip


def _bounded(kind: str, low: int, more: int, is_open: bool) -> dict[str, Any]:
    below, above = ("exclusiveMinimum", "exclusiveMaximum") if is_open else ("minimum", "maximum")
    return {"type": kind, below: low, above: low + more + 2}


LEAVES: Schemas = st.one_of(
    st.builds(lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
              st.integers(0, 3), st.integers(0, 6)),
    st.sampled_from([{"type": "boolean"}, {"type": ["integer", "null"], "minimum": -5, "maximum": 130}]),
    st.builds(_bounded, st.sampled_from(["integer", "number"]), st.integers(-120, 90), st.integers(0, 500),
              st.booleans()),
    st.builds(lambda step: {"type": "integer", "multipleOf": step, "minimum": -50, "maximum": 999}, st.integers(2, 30)),
    st.builds(lambda pattern, most: {"type": "string", "pattern": pattern, "maxLength": most},
              st.sampled_from(PATTERNS), st.integers(5, 9)),
    st.builds(lambda name: {"type": "string", "format": name}, st.sampled_from(FORMATS[:4])),
    st.lists(st.sampled_from(["red", "ünï", 3, None, True, "two words", -0.5, [1], {"a": "\n"}]), min_size=1,
             unique_by=str).map(lambda values: {"enum": values}),
    st.just({"const": {"a": [1, "b"]}}),
)  # fmt: skip

SATISFIABLE: Schemas = objects(
    st.one_of(
        LEAVES,
        arrays(LEAVES),
        objects(LEAVES, 2),
        arrays(objects(LEAVES, 2)),
        st.builds(lambda a, b: {"anyOf": [a, b]}, LEAVES, arrays(LEAVES)),
        st.builds(lambda a, b: {"type": "array", "prefixItems": [a, b], "minItems": 2, "items": False}, LEAVES, LEAVES),
    ),
    4,
)

SMALL = st.integers(-3, 6)
ODD_NUMBERS = st.one_of(
    SMALL, st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), st.sampled_from([10**20, 1e-7, 0.1, -0.0])
)
REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/x", "#b", "other.json"])
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
CONSTANTS = st.recursive(
    st.none() | st.booleans() | ODD_NUMBERS | st.text(max_size=4) | st.sampled_from(["\\", '"', "\x7f", "\u2028"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def _keywords(inner: Schemas) -> Schemas:
    """A schema of a few keywords, of which some contradict, or aren't keywords."""
    some, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    options: dict[str, Schemas] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "properties": named, "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "required": st.lists(KEYS, max_size=2, unique=True), "additionalProperties": st.booleans() | inner,
        "items": inner, "prefixItems": some, "anyOf": some, "oneOf": some, "allOf": some,
        "enum": st.lists(CONSTANTS, max_size=3), "const": CONSTANTS, "format": st.sampled_from([*FORMATS, "colour"]),
        "pattern": st.sampled_from([*PATTERNS, "(?=a)b", "(", "^$"]), "$ref": REFERENCES, "multipleOf": ODD_NUMBERS,
        "$defs": st.fixed_dictionaries({"a": inner, "b": inner.map(lambda one: {"allOf": [one], "$anchor": "b"})}),
        "not": inner, "uniqueItems": st.booleans(), "minLenght": SMALL, "default": CONSTANTS,
    }  # fmt: skip
    options |= dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ODD_NUMBERS)
    options |= dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        SMALL.filter(lambda x: x > -2),
    )
    rare = {"not", "uniqueItems", "minLenght"}
    names = st.sets(st.sampled_from(sorted(options.keys() - rare)), min_size=1, max_size=4)
    names |= st.sets(st.sampled_from(sorted(options)), min_size=1, max_size=3)
    return names.flatmap(lambda names: st.fixed_dictionaries({name: options[name] for name in sorted(names)}))


ANY: Schemas = st.recursive(st.booleans() | LEAVES, _keywords, max_leaves=6) | SATISFIABLE


def distinct(schemas: Schemas, count: int) -> list[Any]:
    """The first schemas of a strategy, the same in each run."""
    found = dict[str, Any]()

    @settings(
        max_examples=4 * count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas)
    def add(schema: Any) -> None:
        if len(found) < count:
            found.setdefault(json.dumps(schema), schema)

    add()
    return list(found.values())


READERS: Mapping[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "date-time": datetime.fromisoformat,
    "uuid": UUID,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
}


def check_valid(value: Any, schema: Any) -> None:
    """Raise jsonschema.ValidationError unless a value is valid; formats are those of Python's standard library."""
    checker = jsonschema.FormatChecker(formats=())
    for name, read in READERS.items():
        checker.checks(name, ValueError)(lambda text, read=read: not isinstance(text, str) or bool(str(read(text))))
    jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator, format_checker=checker)
