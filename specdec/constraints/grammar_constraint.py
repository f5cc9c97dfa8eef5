"""The common part of the constraints that llguidance compiles."""

import json
from abc import abstractmethod
from typing import Any

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.matcher import start


class GrammarConstraint(Constraint):
    """A constraint that llguidance compiles from a grammar; it may stand in the rules of a ``Grammar``."""

    def __init__(self, **options: Any) -> None:  # type checkers would make one without options
        super().__init__(**options)

    @abstractmethod
    def grammar(self, vocabulary: Vocabulary) -> str:
        """The grammar: rules in Lark, or llguidance's JSON form, as ``LLMatcher.grammar_from_…`` returns it.

        Raises:
            RequestError: if it can't be enforced, or llguidance isn't installed.
        """

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        """Return the state before the first new token.

        Args:
            seconds: limit of the compilation (default: ten).

        Raises:
            RequestError: as for ``Constraint.start``; a SlowGrammarError for the time.
        """
        return start(self.grammar(vocabulary), vocabulary, seconds)


def named(name: str, grammar: str) -> dict[str, Any]:
    """Return a grammar in llguidance's JSON form, under the name by which rules refer to it."""
    if not grammar.startswith("{"):
        return {"name": name, "lark_grammar": grammar}
    only: dict[str, Any]
    (only,) = json.loads(grammar)["grammars"]
    return {**only, "name": name}
