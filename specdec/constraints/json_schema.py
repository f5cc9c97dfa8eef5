"""JSON that is valid under a schema."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.formats import with_exact_formats
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import GrammarError, check_size, library, start
from specdec.constraints.refusals import place_of_refusal
from specdec.constraints.schema_check import as_decimal, check_schema, too_deep
from specdec.errors import RequestError, in_one_line

Whitespace = Literal["single", "none", "any"]
_WHITESPACE = r"[ \n\r\t]{0,40}"  # models may write whitespace without end
ALLOWED_ESCAPES = 'nrbtf\\"'  # no \uXXXX: a key in an open object could be spelled past its schema
_SEPARATORS = {"single": (", ", ": "), "none": (",", ":"), "any": (",", ":")}


class JsonSchema(GrammarConstraint):
    """JSON that is valid under a JSON schema, with the properties in the schema's order.

    ``JsonSchema(Person)`` takes a pydantic model, or any type that a pydantic TypeAdapter takes, and ``result.parsed``
    is an object of that type. ``JsonSchema({"type": "object", …})`` takes a schema as a mapping or JSON text, and
    ``result.parsed`` is plain data. Keywords that can't be enforced are refused by name.
    """

    definition: str = Field(description="the schema as JSON text")
    whitespace: Whitespace = Field(
        default="single", description="a space after each comma and colon, none, or up to 40 characters anywhere"
    )
    python_type: Any = Field(default=None, exclude=True, repr=False, description="the type of parsed values")

    def __init__(self, definition: Any, **options: Any) -> None:
        if isinstance(definition, str | Mapping):
            text = definition if isinstance(definition, str) else _as_text(definition)
        else:
            options["python_type"] = definition
            text = _as_text(_schema_of(definition))
        check_size("the JSON schema", text)
        check_schema(_read(text))
        super().__init__(definition=text, **options)

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        try:
            return super().start(vocabulary, seconds)
        except GrammarError as error:
            schema = json.loads(self.definition)
            place = place_of_refusal(
                schema, error.reason, lambda part, seconds: start(self._grammar_of(part), vocabulary, seconds)
            )
            raise RequestError(f"the JSON schema is refused at {place}: {error.reason}") from None

    def grammar(self, vocabulary: Vocabulary) -> str:
        return self._grammar_of(json.loads(self.definition))

    def _grammar_of(self, schema: Any) -> str:
        after_item, after_key = _SEPARATORS[self.whitespace]
        options = {
            "item_separator": after_item,
            "key_separator": after_key,
            "whitespace_flexible": self.whitespace == "any",
            "whitespace_pattern": _WHITESPACE if self.whitespace == "any" else None,
            "json_allowed_escapes": ALLOWED_ESCAPES,
            "coerce_one_of": False,
            "lenient": False,
        }
        text = json.dumps(with_exact_formats(schema), ensure_ascii=False)
        return str(library().LLMatcher.grammar_from_json_schema(text, overrides=options))

    def parse(self, text: str) -> Any:
        if self.python_type is None:
            return plain_data(text)
        return TypeAdapter(self.python_type).validate_json(text)


class JsonObject(GrammarConstraint):
    """A JSON object of any content, with the whitespace that the model writes; ``result.parsed`` is a dict."""

    def grammar(self, vocabulary: Vocabulary) -> str:
        return JsonSchema({"type": "object"}, whitespace="any").grammar(vocabulary)

    def parse(self, text: str) -> Any:
        return plain_data(text)


def plain_data(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: for a number beyond the range of a double, which Python reads as infinity.
    """
    return json.loads(text, parse_float=lambda number: float(as_decimal(number)))


def _as_text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise too_deep() from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"the JSON schema isn't JSON: {in_one_line(error)}") from None


def _schema_of(python_type: Any) -> Mapping[str, Any]:
    try:
        return TypeAdapter(python_type).json_schema()
    except Exception as error:  # pydantic's, and any that a model's own code raises
        raise RequestError(
            f"JsonSchema({python_type!r}): give a pydantic model or another type with a JSON schema, a mapping or JSON "
            f"text ({in_one_line(error)})"
        ) from error


def _read(text: str) -> Any:
    try:
        schema = json.loads(text, parse_float=as_decimal)
        json.dumps(schema, allow_nan=False, default=str)  # Python reads NaN, which isn't JSON
        return schema
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise RequestError(f"the JSON schema isn't JSON: {in_one_line(error)}") from None
