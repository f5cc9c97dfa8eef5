"""A constraint that was compiled elsewhere."""

from typing import Any

from pydantic import ConfigDict

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary


class Compiled(Constraint):
    """A constraint with its first state, for a generator with the same vocabulary; `start` takes no time.

    A server compiles constraints on other threads than the one that decodes.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    constraint: Constraint
    state: ConstraintState

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return self.state

    def parse(self, text: str) -> Any:
        return self.constraint.parse(text)

    def __repr__(self) -> str:
        return repr(self.constraint)
