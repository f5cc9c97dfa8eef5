"""Schemas that would be enforced in part are refused, with the place in the schema."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from specdec import RequestError
from specdec.constraints import Choice, Grammar, JsonSchema, Regex, schema_check
from specdec.constraints.schema_check import check_schema

STRING = {"type": "string"}
REFUSED: dict[str, tuple[Any, str]] = {
    "not": ({"properties": {"a": {"not": STRING}}}, "#/properties/a: the keyword 'not' can't be enforced"),
    "misspelt": ({"items": {"minLenght": 3}}, "#/items: the keyword 'minLenght' can't be enforced; did you mean 'minL"),
    "unique": ({"type": "array", "uniqueItems": True}, "#: the keyword 'uniqueItems'"),
    "if": ({"anyOf": [STRING, {"if": STRING}]}, "#/anyOf/1: the keyword 'if'"),
    "old draft": ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, "#: exclusiveMinimum is a number"),
    "old tuples": ({"items": [STRING]}, "#: items is a schema"),
    "nullable": ({"type": "string", "nullable": True}, "#: the keyword 'nullable'"),
    "leniency": ({"x-guidance": {"lenient": True}}, "#: the keyword 'x-guidance'"),
    "in a definition": ({"$defs": {"a/b": {"minLength": -1}}}, "#/$defs/a~1b: minLength is an integer of at least 0"),
    "no schema": ({"additionalProperties": {"anyOf": [3]}}, "#/additionalProperties/anyOf/0: a schema is a mapping"),
    "elsewhere": ({"$ref": "https://example.com/a"}, "#: $ref is 'https://example.com/a', which is no schema"),
    "hidden": ({"examples": [{"not": {}}], "$ref": "#/examples/0"}, "#: $ref is '#/examples/0', which is no schema"),
    "control character": ({"enum": ["a", {"b": ["\x01"]}]}, "#: enum has a control character"),
    "large divisor": ({"items": {"multipleOf": 9999991}}, "#/items: multipleOf is 9999991; without the zeros"),
    "no divisor": ({"multipleOf": 0}, "#: multipleOf is a number above 0"),
    "delete": ({"items": {"const": "\x7f"}}, "#/items: const has a control character"),
    "long integer": ({"enum": [1, 1234567890123456789]}, "#: the digits of enum, 1234567890123456789"),
    "long integer inside": (
        {"anyOf": [{"const": {"a": [2**53 + 1]}}]}, "#/anyOf/0: the digits of const, 9007199254740993"
    ),
    "pydantic's literal": (list[Literal[1234567890123456789]], "#/items: the digits of const, 1234567890123456789"),
    "of a double, not as read": ({"const": 1.2345678901234568e18}, "#: the digits of const, 1.2345678901234568E+18"),
    "more digits than a double": ('{"const": 0.1234567890123456789}', "#: the digits of const, 0.1234567890123456789"),
    "smaller than a double": ('{"minimum": 1e-400}', "#: the digits of minimum, 1E-400"),
    "long bounds": (
        {"type": "integer", "minimum": 10**17 + 1, "maximum": 10**17 + 3}, "#: the digits of minimum, 10000000000000000"
    ),
    "bound without neighbours": ({"exclusiveMaximum": 10**17}, "#: the digits of exclusiveMaximum, 100000000000000000"),
    "bound without a neighbour": ({"exclusiveMinimum": 2**53}, "#: the digits of exclusiveMinimum, 9007199254740992"),
    "bound of more than 64 bits": ({"minimum": 1e22}, "#: the digits of minimum, 1E+22"),
    "beyond a double": ({"maximum": 10**400}, "#: the digits of maximum, 100000000000000000000000000000000000000…"),
    "divisor of more digits": ('{"multipleOf": 0.10000000000000000000000000001}', "#: the digits of multipleOf, 0.1"),
    "repeated names": ({"type": "object", "minProperties": 2}, "#: minProperties is 2, which a repeated name would"),
    "repeated names of a pattern": (
        {"patternProperties": {"^a$": {}}, "additionalProperties": False, "minProperties": 2}, "have 1 name in required"
    ),
    "repeated names beside others": (
        {"items": {"required": ["a", "a"], "minProperties": 3}}, "#/items: minProperties is 3, which a repeated name"
    ),
    "a constant that no double equals": ({"const": 2**53 + 1}, "can't be enforced: no double has them; give it as a"),
    "a bound that no double equals": ({"minimum": 2**53 + 1}, "can't be enforced: a double within 64 bits is needed"),
    "a bound beside one that no double equals": (
        {"exclusiveMinimum": 2**53}, "can't be enforced: a double within 64 bits is needed, and its neighbour if"
    ),
    "a bound of 64 bits without a sign": (
        {"maximum": 2**64 - 1}, "64 bits is needed, and its neighbour if exclusive; give another, or leave it out"
    ),
    "repeated names beside those of another schema": (
        {"allOf": [{"required": ["a"]}, {"minProperties": 3}]}, "#/allOf/1: minProperties is 3, which a repeated name"
    ),
    "repeated names beside those of one choice": (
        {"anyOf": [{"required": ["a"]}, {"minProperties": 2}]}, "#/anyOf/1: minProperties is 2, which a repeated name"
    ),
    "repeated names in a reference": (
        {"$defs": {"o": {"minProperties": 2}}, "$ref": "#/$defs/o"}, "#/$defs/o: minProperties is 2, which a repeated"
    ),
    "itself": ({"$ref": "#"}, "#: only an endless value"),
    "endless list": (
        {"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}},
        "only an endless value",
    ),
    "endless array": ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "only an endless value"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_would_be_weaker_than_it_reads_is_refused(name: str) -> None:
    schema, reason = REFUSED[name]
    with pytest.raises(RequestError) as caught:
        JsonSchema(schema)
    assert reason in str(caught.value)


def test_schemas_in_a_grammar_are_checked_as_well() -> None:
    for schema, reason in (
        ('{"type": "string", "minLenght": 3}', "did you mean 'minLength'"),
        ('{"x-guidance": {"lenient": true}}', "the keyword 'x-guidance'"),
        ('{"const": 0.12345678901234567890}', "#: the digits of const, 0.12345678901234567890"),
        ("[" * 9_000 + "]" * 9_000, "nested more than 100 levels deep"),
        ('{"const": ' + "[" * 100 + "]" * 100 + "}", "nested more than 100 levels deep"),
        ('{"const": NaN, "minLength": 1' + "0" * 9_000 + "}", "a JSON schema of the grammar isn't JSON"),
    ):
        with pytest.raises(RequestError, match=reason):
            Grammar(f'start: "a" | part\npart: "b" %json{schema} "c"')
    Grammar('start: "%json" | %json {"enum": ["%json {\\"not\\": 3}"]} // as in %json {…}')


@pytest.mark.parametrize("num_levels", [100, 101, 900, 9_000])
def test_schemas_are_nested_up_to_a_number_of_levels(num_levels: int) -> None:
    for text in (
        '{"const": ' + "[" * (num_levels - 1) + "]" * (num_levels - 1) + "}",
        '{"items": ' * (num_levels - 1) + "{}" + "}" * (num_levels - 1),
    ):
        if num_levels == 100:
            JsonSchema(text)
            continue
        with pytest.raises(RequestError, match="nested more than 100 levels deep"):
            JsonSchema(text)


def test_keywords_of_the_standard_are_no_slips_of_the_pen() -> None:
    for keyword in ("uniqueItems", "additionalItems", "minContains", "if"):
        with pytest.raises(RequestError, match=f"the keyword '{keyword}' can't be enforced$"):
            JsonSchema({keyword: 1})


def test_long_chains_of_references_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain up and a chain down: in whatever order schemas are looked at, most wait for another."""
    size, looked_at = 200, list[str]()
    references = {f"up{i}": {"$ref": f"#/$defs/up{i + 1}"} for i in range(size)} | {f"up{size}": True}
    references |= {f"down{i}": {"$ref": f"#/$defs/down{i - 1}"} for i in range(1, size)} | {"down0": True}
    target = schema_check._target
    monkeypatch.setattr(schema_check, "_target", lambda place, *more: looked_at.append(place) or target(place, *more))
    check_schema({"$defs": references})
    assert len(looked_at) == 2 * size - 1
    references["up3"] = {"anyOf": [{"$ref": "#/$defs/up0"}]}
    with pytest.raises(RequestError, match="only an endless value"):
        check_schema({"$defs": references})


class Node(BaseModel):
    """A tree, whose schema refers to itself."""

    value: int
    left: "Node | None" = None
    children: "list[Node]" = []


ACCEPTED: dict[str, Any] = {
    "true": {"properties": {"a": True}, "x-order": 3, "title": "A", "default": 3},
    "recursive": Node,
    "list of models": list[Node],
    "anchor": {"$defs": {"s": {"$anchor": "s", "type": "string"}}, "$ref": "#s"},
    "finite array": {"type": "array", "items": {"$ref": "#"}},
    "divisors": {"anyOf": [{"multipleOf": each} for each in (0.001, 7, 1234.5, 3_000_000)]},
    "escapes": {"enum": ['\b\f\n\r\t\\"/é'], "default": "\x01"},
    "exact numbers": {
        "enum": [2**53, -(2**53) + 1, 2**60, 10**17, 1e20, 6.02214076e23, 1.5e300, 0.1, -0.0, {"a": [5]}]
    },
    "exact bounds": {"minimum": -(2**53), "exclusiveMinimum": 0.1, "maximum": 2**63 - 1, "exclusiveMaximum": 2**53},
    "distinct names": {"required": ["a", "b"], "minProperties": 3},
    "distinct names of a sibling": {"allOf": [{"required": ["a"]}, {"minProperties": 2}]},
    "distinct names of the schema around": {"required": ["a"], "allOf": [{"allOf": [{"minProperties": 2}]}]},
    "distinct names within": {"minProperties": 3, "allOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "names of constants": {"enum": [{"a": 1}, {"a": 1, "b": 2}], "minProperties": 2},
    "long numbers in notes": '{"default": 1234567890123456789, "examples": [0.12345678901234567890]}',
    "true itself": "true",
    "text": '{"enum": [1, "two", null]}',
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_other_schemas_are_taken_as_they_are(name: str) -> None:
    assert JsonSchema(ACCEPTED[name]) == JsonSchema(ACCEPTED[name])
    assert hash(JsonSchema(ACCEPTED[name])) == hash(JsonSchema(ACCEPTED[name]))


def test_what_is_no_schema_or_too_large_is_refused_before_it_is_compiled() -> None:
    for given, reason in (
        ("{", "isn't JSON"),
        ({"const": {1, 2}}, "isn't JSON"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"maximum": 1e999}', "isn't JSON: ValueError: 1e999 is beyond the range of a double"),
        (
            '{"default": 1e-99999999999999999999}',
            "isn't JSON: ValueError: 1e-99999999999999999999 is beyond the range of a double",
        ),
        (open, "give a pydantic model or another type with a JSON schema"),
        ({"enum": ["a" * 300_000]}, "at most 262,144"),
        ({"enum": ["\ud800"]}, "half of a surrogate pair"),
    ):
        with pytest.raises(RequestError, match=reason):
            JsonSchema(given)
    for make in (Regex, Grammar, lambda text: Choice([text])):
        with pytest.raises(RequestError, match="at most 262,144"):
            make("a" * 300_000)
    with pytest.raises(RequestError, match="Choice refused: options="):
        Choice([])
