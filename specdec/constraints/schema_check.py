"""Refusal of JSON schemas that would be enforced in part only, or that allow endless values alone.

llguidance refuses the keywords that it knows and doesn't implement, and ignores those that it doesn't know. A misspelt
keyword, or one of an older draft, would make the constraint weaker than it reads. So each keyword is checked here.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, NoReturn, TypeGuard
from urllib.parse import unquote

from specdec.errors import RequestError, nearest, plural, shortened

_MAPPINGS = {"properties", "patternProperties", "$defs", "definitions"}  # of schemas by name
_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}  # of schemas
_SINGLE = {"items", "additionalProperties"}
_NOTES = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding",
    "contentMediaType", "discriminator", "$comment", "$schema", "$id", "$anchor",
}  # fmt: skip

_ALL_OF = re.compile(r"(/allOf/\d+)+$")  # of the place of a schema that holds with the one around
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that need \uXXXX, which isn't allowed

# Keywords of JSON Schema that aren't enforced: each is spelled right, so another one wasn't meant.
_KNOWN = {
    "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames",
    "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "contentSchema",
    "$dynamicRef", "$dynamicAnchor", "$vocabulary", "additionalItems", "dependencies", "$recursiveRef",
    "$recursiveAnchor",
}  # fmt: skip

_LARGEST_DIVISOR = 25_000  # takes a fraction of a second to compile
_MOST_LEVELS = 100  # the library's parser allows 128, a few of which it needs itself
_MOST_SHOWN = 40  # characters of a faulty value in a message


def _is_number(value: object) -> TypeGuard[float | Decimal]:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_NUMERIC = {"const", "enum", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (_is_number, "a number")),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_is_count, "an integer of at least 0"),
    ),
    **dict.fromkeys(("pattern", "format", "$ref"), (_is_text, "a string")),
    "required": (_is_texts, "a list of strings"),
    "type": (lambda value: _is_text(value) or _is_texts(value), "a string or a list of strings"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "const": (lambda _: True, "a value"),
    **dict.fromkeys(sorted(_MAPPINGS), (lambda value: isinstance(value, dict), "a mapping of names to schemas")),
    **dict.fromkeys(sorted(_LISTS), (lambda value: isinstance(value, list), "a list of schemas")),
    **dict.fromkeys(sorted(_SINGLE), (lambda value: isinstance(value, dict | bool), "a schema")),
}


def check_schema(schema: object) -> None:
    """Check a JSON schema, draft 2020-12, as far as the library doesn't.

    Raises:
        RequestError: with the place in the schema, for a keyword that isn't enforced, a value of the wrong kind, a
            reference to no schema, or a schema that allows endless values alone; for one that is nested too deeply.
    """
    _check_depth(schema)
    schemas = schemas_by_place(schema, _check_one)
    _check_names(schemas)
    _check_finite(schemas)


def as_decimal(text: str) -> Decimal:
    """Return a number of a JSON schema's text with all of its digits, as ``parse_float`` of ``json.loads``.

    Raises:
        ValueError: beyond the range of a double.
    """
    with suppress(InvalidOperation):  # for an exponent of many digits
        if math.isfinite(float(text)):
            return Decimal(text)
    raise ValueError(f"{shortened(text, _MOST_SHOWN)} is beyond the range of a double")


def too_deep() -> RequestError:
    """Return the error for a JSON schema with too many levels of lists and objects."""
    return RequestError(f"the JSON schema is nested more than {_MOST_LEVELS} levels deep")


def _check_depth(schema: object) -> None:
    level = [schema]
    for _ in range(_MOST_LEVELS):
        inner = [each.values() if isinstance(each, Mapping) else each for each in level if _is_container(each)]
        level = [*chain.from_iterable(inner)]
    if any(map(_is_container, level)):
        raise too_deep()


def _is_container(value: object) -> TypeGuard[Mapping[str, Any] | list[Any]]:
    return isinstance(value, Mapping | list)


def schemas_by_place(schema: object, check: Callable[[str, Any], object] = lambda *_: None) -> dict[str, Any]:
    """Return a schema and all schemas within it, by place; ``check(place, schema)`` runs before those within."""
    schemas, waiting = {"#": schema}, ["#"]
    while waiting:
        place = waiting.pop()
        found = schemas[place]
        check(place, found)
        if isinstance(found, dict):
            inner = dict(inner_schemas(place, found))
            schemas |= inner
            waiting += inner
    return schemas


def _check_one(place: str, schema: object) -> None:
    if isinstance(schema, dict):
        _check_keywords(place, schema)
    elif not isinstance(schema, bool):
        _refuse(place, f"a schema is a mapping, true or false, not {_shown(schema)}")


def _check_keywords(place: str, schema: Mapping[str, Any]) -> None:
    for keyword, value in schema.items():
        if keyword in _NOTES or (keyword.startswith("x-") and keyword != "x-guidance"):
            continue
        if keyword not in _KINDS:
            likely = [] if keyword in _KNOWN else nearest(keyword, _KINDS)
            hint = f"; did you mean {likely[0]!r}?" if likely else ""
            _refuse(place, f"the keyword {_shown(keyword)} can't be enforced{hint}")
        is_right, kind = _KINDS[keyword]
        if not is_right(value):
            _refuse(place, f"{keyword} is {kind}, not {_shown(value)}")
    if fault := next(_faults(schema), None):
        _refuse(place, fault)


def _faults(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what can't be enforced in a schema whose keywords have values of their kinds."""
    if _significand(schema.get("multipleOf", 1)) > _LARGEST_DIVISOR:
        shown = shortened(str(schema["multipleOf"]), _MOST_SHOWN)
        yield f"multipleOf is {shown}; without the zeros at its end at most {_LARGEST_DIVISOR:,} is possible"
    for keyword in filter(_NUMERIC.__contains__, schema):
        leaves = [*_leaves(schema[keyword])]
        if any(isinstance(leaf, str) and _UNWRITABLE.search(leaf) for leaf in leaves):
            yield f"{keyword} has a control character, which can't be written"
        if inexact := [each for each in filter(_is_number, leaves) if not _is_exact(keyword, each)]:
            shown = shortened(str(inexact[0]), _MOST_SHOWN)
            why = "no double has them; give it as a string"
            if keyword not in ("const", "enum"):
                why = "a double within 64 bits is needed, and its neighbour if exclusive; give another, or leave it out"
            yield f"the digits of {keyword}, {shown}, can't be enforced: {why}"


def _check_names(schemas: Mapping[str, Any]) -> None:
    """Refuse numbers of properties that an object would reach by a repeated name, beyond what ``required`` ensures."""
    objects = [(place, _ALL_OF.sub("", place), each) for place, each in schemas.items() if isinstance(each, dict)]
    names = defaultdict[str, set[str]](set)
    for _, whole, schema in objects:
        names[whole].update(schema.get("required", ()))
    for place, whole, schema in objects:
        least, most = schema.get("minProperties", 0), len(names[whole]) + 1
        if least > most and not {"const", "enum"} & schema.keys():  # the names of constants are their own
            remedy = f"have {plural(least - 1, 'name')} in required, or give {most} at most"
            _refuse(place, f"minProperties is {least}, which a repeated name would meet: {remedy}")


def _is_exact(keyword: str, number: float | Decimal) -> bool:
    """Return True if the library enforces a number's own digits: it reads doubles, and bounds integers in 64 bits."""
    step = {"exclusiveMinimum": 1, "exclusiveMaximum": -1}.get(keyword, 0)  # to the nearest integer that is valid
    try:
        double = float(number)
    except OverflowError:
        return False
    if not double.is_integer() or (keyword in ("const", "enum") and abs(double) >= 2**63):
        return Decimal(str(number)) == Decimal(repr(double))
    return Decimal(str(number)) == max(-(2**63), min(int(double + step), 2**63 - 1)) - step


def _significand(number: float | Decimal) -> int:
    digits = Decimal(str(number)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def _leaves(value: object) -> Iterator[object]:
    """Yield the values in a JSON value that aren't lists or objects; keys are written as they are."""
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def inner_schemas(place: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly within a schema, each with its place as a JSON pointer."""
    for keyword, value in schema.items():
        if keyword in _MAPPINGS:
            yield from ((f"{place}/{keyword}/{_escaped(name)}", inner) for name, inner in value.items())
        elif keyword in _LISTS:
            yield from ((f"{place}/{keyword}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _SINGLE:
            yield f"{place}/{keyword}", value


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _check_finite(schemas: Mapping[str, Any]) -> None:
    """Find the schemas that allow a finite value: the least set that contains each whose parts are in it."""
    anchors = {
        f"#{each['$anchor']}": place for place, each in schemas.items() if isinstance(each, dict) and "$anchor" in each
    }
    unmet, needing = dict[str, int](), defaultdict[str, list[tuple[str, int]]](list)
    for place in schemas:
        needs = _needs(place, schemas, anchors)
        unmet[place] = len(needs)
        for index, alternatives in enumerate(needs):
            for each in alternatives:
                needing[each].append((place, index))
    met, finite = set[tuple[str, int]](), [place for place, num_needs in unmet.items() if not num_needs]
    for each in finite:
        for need in needing[each]:
            if need not in met:
                met.add(need)
                unmet[need[0]] -= 1
                finite += [need[0]] if not unmet[need[0]] else []
    if endless := [place for place in schemas if unmet[place]]:
        _refuse(endless[0], "only an endless value would be valid")


def _needs(place: str, schemas: Mapping[str, Any], anchors: Mapping[str, str]) -> list[list[str]]:
    """The places of which a schema needs finite values, one of each list."""
    schema = schemas[place]
    if isinstance(schema, bool) or "const" in schema or "enum" in schema:
        return []
    needed = [f"{place}/allOf/{index}" for index in range(len(schema.get("allOf", ())))]
    if "$ref" in schema:
        needed.append(_target(place, schema["$ref"], schemas, anchors))
    needed += _required_parts(place, schema)
    choices = [
        [f"{place}/{keyword}/{index}" for index in range(len(schema[keyword]))]
        for keyword in ("anyOf", "oneOf")
        if keyword in schema
    ]
    return [[each] for each in needed if each in schemas] + choices


def _required_parts(place: str, schema: Mapping[str, Any]) -> list[str]:
    """The places of the properties or items that each valid value has; none unless it has to be an object or array."""
    types = schema.get("type")
    only = types if isinstance(types, str) else types[0] if types and len(types) == 1 else None
    if only == "object":
        known = schema.get("properties", {})
        return [
            f"{place}/properties/{_escaped(name)}" if name in known else f"{place}/additionalProperties"
            for name in schema.get("required", ())
        ]
    if only == "array":
        num_first = len(schema.get("prefixItems", ()))
        least = schema.get("minItems", 0)
        parts = [f"{place}/prefixItems/{index}" for index in range(min(least, num_first))]
        return [*parts, f"{place}/items"] if least > num_first else parts
    return []


def _target(place: str, reference: str, schemas: Mapping[str, Any], anchors: Mapping[str, str]) -> str:
    target = anchors.get(reference, unquote(reference))
    if target not in schemas:
        _refuse(place, f"$ref is {_shown(reference)}, which is no schema of this document")
    return target


def _shown(value: object) -> str:
    return repr(shortened(str(value), _MOST_SHOWN))


def _refuse(place: str, reason: str) -> NoReturn:
    # The place has names of the caller's, of any length.
    raise RequestError(f"the JSON schema is refused at {shortened(place)}: {reason}")
