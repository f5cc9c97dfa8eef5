"""The first states of recent constraints, by content."""

from collections import OrderedDict
from collections.abc import Iterable

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.path_state import PathState
from specdec.errors import RequestError, SpecdecError, failure

_MOST_CONSTRAINTS = 64


class ConstraintCache:
    """Starts constraints, and compiles each of the last 64 once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._states: OrderedDict[Constraint, ConstraintState] = OrderedDict()

    def start(self, constraint: Constraint, eos_token_ids: Iterable[int]) -> PathState:
        """Return a request's state before its first new token.

        Raises:
            RequestError: for a constraint that can't be enforced or hashed, or allows the empty text alone, or no text.
            PluginError: if a third party's constraint fails.
        """
        try:
            hash(constraint)
        except TypeError:
            name = type(constraint).__name__
            raise RequestError(f"{name} has a field that can't be hashed: use tuples") from None
        if constraint not in self._states:
            try:
                self._states[constraint] = constraint.start(self._vocabulary)
            except SpecdecError:
                raise
            except Exception as error:  # a third party's code
                raise failure(f"constraint {type(constraint).__name__}", error) from error
        self._states.move_to_end(constraint)
        while len(self._states) > _MOST_CONSTRAINTS:
            self._states.popitem(last=False)
        ends = frozenset(token for token in eos_token_ids if token < self._vocabulary.size)
        state = PathState(self._states[constraint], ends, self._vocabulary.size)
        state.check_start()
        return state
