"""The first states of recent constraints, by content."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.path_state import PathState
from specdec.errors import RequestError, blaming

_MOST_CONSTRAINTS = 64


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


class ConstraintCache:
    """Retains the first states of the last 64 constraints, so that each is compiled once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._states: OrderedDict[Constraint, ConstraintState] = OrderedDict()

    def find(self, constraint: Constraint) -> ConstraintState | None:
        """Return a constraint's first state; None if it has to be compiled."""
        if isinstance(constraint, Compiled):
            return constraint.state
        if constraint in self._states:
            self._states.move_to_end(constraint)
        return self._states.get(constraint)

    def add(self, constraint: Constraint, state: ConstraintState) -> None:
        """Retain a constraint's first state."""
        self._states[constraint] = state
        while len(self._states) > _MOST_CONSTRAINTS:
            self._states.popitem(last=False)

    def start(self, constraint: Constraint, eos_token_ids: Iterable[int]) -> PathState:
        """Return a request's state before its first new token, compiled now if it has to be.

        Raises:
            RequestError: for a constraint that can't be enforced or hashed, or allows the empty text alone, or no text.
            PluginError: if a third party's constraint fails.
        """
        try:
            hash(constraint)
        except TypeError:
            name = type(constraint).__name__
            raise RequestError(f"{name} has a field that can't be hashed: use tuples") from None
        state = self.find(constraint)
        if state is None:
            with blaming(f"constraint {type(constraint).__name__}"):
                state = constraint.start(self._vocabulary)
            self.add(constraint, state)
        ends = frozenset(token for token in eos_token_ids if token < self._vocabulary.size)
        path = PathState(state, ends, self._vocabulary.size)
        path.check_start()
        return path
