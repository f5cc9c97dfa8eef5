"""Text that matches a regular expression."""

from typing import Any

from pydantic import Field

from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import GrammarError, check_size, library

_RULE = " 1 | start: /"  # of the grammar that the library makes


class Regex(GrammarConstraint):
    """Text that matches a regular expression as a whole, in the syntax of Rust's crate ``regex``.

    Lookaround, backreferences and lazy quantifiers are refused.
    """

    pattern: str = Field(description="the regular expression")

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern=pattern, **options)
        check_size("the regular expression", self.pattern)

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        try:
            return super().start(vocabulary, seconds)
        except GrammarError as error:  # which repeats the expression, before and after the reason
            raise GrammarError(error.reason.partition(_RULE)[0].rpartition("error: ")[2]) from None

    def grammar(self, vocabulary: Vocabulary) -> str:
        return str(library().LLMatcher.grammar_from_regex(self.pattern))
