"""JSON schemas of requests that aren't strict."""

import logging
import time
from typing import Any

from specdec.constraints import Grammar, JsonObject, JsonSchema
from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import LEAST_SECONDS, MOST_SECONDS, GrammarError, SlowGrammarError
from specdec.errors import RequestError


class LenientSchema(GrammarConstraint):
    """JSON that is valid under a schema; under ``any_value`` if the library refuses the schema.

    A grammar with such a part is refused together with the part's schema: ``enforceable`` returns it without.
    """

    schema_: JsonSchema
    any_value: GrammarConstraint

    def __init__(self, schema: JsonSchema, any_value: GrammarConstraint) -> None:
        super().__init__(schema_=schema, any_value=any_value)

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        deadline = time.monotonic() + (MOST_SECONDS if seconds is None else seconds)
        try:
            return super().start(vocabulary, seconds)
        except GrammarError as error:
            log_unenforced(error)
            return start_by(deadline, self.any_value, vocabulary)

    def grammar(self, vocabulary: Vocabulary) -> str:
        return self.schema_.grammar(vocabulary)


def enforceable(constraint: GrammarConstraint, vocabulary: Vocabulary, deadline: float) -> GrammarConstraint:
    """Return a constraint that the library has refused, with any value for each lenient part that it refuses alone.

    Args:
        deadline: a time of ``time.monotonic``.

    Raises:
        SlowGrammarError: if the parts together take too long to compile.
    """
    if not isinstance(constraint, Grammar):
        return constraint
    parts = {name: _enforceable_part(part, vocabulary, deadline) for name, part in constraint.parts}
    return Grammar(constraint.definition, parts=parts)


def _enforceable_part(part: GrammarConstraint, vocabulary: Vocabulary, deadline: float) -> GrammarConstraint:
    if not isinstance(part, LenientSchema):
        return part
    try:
        start_by(deadline, part, vocabulary)
    except GrammarError as error:
        log_unenforced(error)
        return part.any_value
    return part


def log_unenforced(error: RequestError) -> None:
    """Log that a schema isn't enforced, for an operator who looks for the cause of invalid JSON."""
    logger = logging.getLogger("specdec.serving")
    logger.warning("schema not enforced", extra={"event": "schema_not_enforced", "reason": str(error)})


def start_by(deadline: float, constraint: GrammarConstraint, vocabulary: Vocabulary) -> ConstraintState:
    """Compile a constraint's grammar by a time of ``time.monotonic``.

    Raises:
        GrammarError: if the library refuses the grammar.
        SlowGrammarError: if the time has passed.
    """
    left = deadline - time.monotonic()
    try:
        if left >= LEAST_SECONDS:
            return GrammarConstraint.start(constraint, vocabulary, left)
    except SlowGrammarError:  # which names the seconds that were left
        pass
    raise SlowGrammarError(f"the constraints take longer than {MOST_SECONDS:g} s to compile: simplify them")


def any_value_of(schema: Any) -> GrammarConstraint:
    """Return any object, or any JSON value for a schema whose type isn't object."""
    is_object = not isinstance(schema, dict) or schema.get("type", "object") == "object"
    return JsonObject() if is_object else JsonSchema({}, whitespace="any")
