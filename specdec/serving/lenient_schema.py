"""JSON schemas of requests with ``"strict": false``."""

import time
from typing import Any

from specdec.constraints import Grammar, JsonObject, JsonSchema
from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import MOST_SECONDS, GrammarError, SlowGrammarError


class LenientSchema(GrammarConstraint):
    """JSON that is valid under a schema; under ``any_value`` if the library refuses the schema.

    A grammar with such a part is refused together with the part's schema: ``enforceable`` returns it without.
    """

    schema_: JsonSchema
    any_value: GrammarConstraint

    def __init__(self, schema: JsonSchema, any_value: GrammarConstraint) -> None:
        super().__init__(schema_=schema, any_value=any_value)

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        try:
            return super().start(vocabulary, seconds)
        except GrammarError:
            return self.any_value.start(vocabulary, seconds)

    def grammar(self, vocabulary: Vocabulary) -> str:
        return self.schema_.grammar(vocabulary)


def enforceable(constraint: GrammarConstraint, vocabulary: Vocabulary) -> GrammarConstraint:
    """Return a constraint that the library has refused, with any value for each lenient part that it refuses alone.

    Raises:
        SlowGrammarError: if the parts together take too long to compile.
    """
    if not isinstance(constraint, Grammar):
        return constraint
    deadline = time.monotonic() + MOST_SECONDS
    parts = {name: _enforceable_part(part, vocabulary, deadline) for name, part in constraint.parts}
    return Grammar(constraint.definition, parts=parts)


def _enforceable_part(part: GrammarConstraint, vocabulary: Vocabulary, deadline: float) -> GrammarConstraint:
    if not isinstance(part, LenientSchema):
        return part
    try:
        GrammarConstraint.start(part, vocabulary, max(0.0, deadline - time.monotonic()))
    except GrammarError:
        return part.any_value
    except SlowGrammarError:
        raise SlowGrammarError(
            f"the constraints take longer than {MOST_SECONDS:g} s to compile: simplify them"
        ) from None
    return part


def any_value_of(schema: Any) -> GrammarConstraint:
    """Return any object, or any JSON value for a schema whose type isn't object."""
    is_object = not isinstance(schema, dict) or schema.get("type", "object") == "object"
    return JsonObject() if is_object else JsonSchema({}, whitespace="any")
