"""Text of a context-free grammar."""

from typing import Any

from pydantic import Field

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.matcher import check_size, library, start


class Grammar(Constraint):
    """Text of a context-free grammar in llguidance's dialect of Lark, whose first rule is ``start``.

    JSON schemas may stand in a rule: ``start: "<tool_call>" call "</tool_call>"``, ``call: %json {"type": "object"}``.
    """

    definition: str = Field(description="the grammar's rules")

    def __init__(self, definition: str, **options: Any) -> None:
        super().__init__(definition=definition, **options)
        check_size("the grammar", self.definition)

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return start(library().LLMatcher.grammar_from_lark(self.definition), vocabulary)
