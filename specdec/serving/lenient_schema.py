"""JSON schemas of requests with ``"strict": false``."""

from typing import Any

from specdec.constraints import JsonObject, JsonSchema
from specdec.constraints.base import Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import GrammarError, start


class LenientSchema(GrammarConstraint):
    """JSON that is valid under a schema; under ``any_value`` if the library refuses the schema."""

    schema_: JsonSchema
    any_value: GrammarConstraint

    def __init__(self, schema: JsonSchema, any_value: GrammarConstraint) -> None:
        super().__init__(schema_=schema, any_value=any_value)

    def grammar(self, vocabulary: Vocabulary) -> str:
        grammar = self.schema_.grammar(vocabulary)
        try:
            start(grammar, vocabulary)
        except GrammarError:
            return self.any_value.grammar(vocabulary)
        return grammar


def any_value_of(schema: Any) -> GrammarConstraint:
    """Return any object, or any JSON value for a schema whose type isn't object."""
    is_object = not isinstance(schema, dict) or schema.get("type", "object") == "object"
    return JsonObject() if is_object else JsonSchema({}, whitespace="any")
