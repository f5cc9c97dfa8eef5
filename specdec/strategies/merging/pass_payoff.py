"""The worth of a merge's part that drafts by passes of a model, such as a trained head: time saved over time taken.

    share of time = seconds of the part's passes / seconds of the steps
    share of tokens = accepted tokens that no other part would have drafted / tokens of the steps

Without the part's passes, both the time and the tokens of these steps would be missing. So passes pay while their share
of tokens is the larger one.
"""

from collections.abc import Sequence

from specdec.record import Outcome, StepRecord

_FEWEST = 16  # steps with passes before their shares are compared
_MEMORY = 0.98  # weight of earlier steps after each new one
_PAUSE, _LONGEST_PAUSE = 64, 512  # steps without passes before they are tried again; each trial doubles the next pause


class PassPayoff:
    """Decides, step by step, whether a part's passes run.

    Args:
        name: of the part, as in ``DraftTree.proposed_by``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_running = True  # passes run in the step under way
        self._seconds = 0.0  # of the passes of that step
        self._num_left, self._pause = 0, _PAUSE  # of a pause
        self._restart()

    def _restart(self) -> None:
        self._num_steps, self._time, self._time_of_all, self._won, self._tokens = 0, 0.0, 0.0, 0.0, 0.0

    def begin(self) -> bool:
        """Begin a step; return True if the part's passes run in it."""
        self._num_left = max(0, self._num_left - 1)
        self._is_running, self._seconds = self._num_left == 0, 0.0
        return self._is_running

    def add_pass(self, seconds: float) -> None:
        """Add the time of the part's passes in the step under way."""
        self._seconds = seconds

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Called after each step; ``outcomes`` are those of the merge's requests."""
        is_own = record.num_rows == len(outcomes)  # else the time is others' as well
        if not (self._is_running and self._seconds and is_own and record.is_warm and record.kind == "step"):
            return
        self._num_steps += 1
        self._time = _MEMORY * self._time + self._seconds
        self._time_of_all = _MEMORY * self._time_of_all + record.total_seconds
        self._won = _MEMORY * self._won + sum(map(self._num_won, outcomes))
        self._tokens = _MEMORY * self._tokens + sum(len(outcome.tokens) for outcome in outcomes)
        self._seconds = 0.0
        if self._num_steps < _FEWEST:
            return
        if self._time * self._tokens > self._won * self._time_of_all:
            self._num_left, self._pause = self._pause, min(_LONGEST_PAUSE, 2 * self._pause)
            self._restart()
        else:
            self._pause = _PAUSE

    def _num_won(self, outcome: Outcome) -> int:
        """Return the number of accepted draft tokens from the first one on that the part alone proposed."""
        if outcome.tree is None:
            return 0
        path = outcome.path[1 : len(outcome.tokens)]
        proposed_by = [outcome.tree.proposed_by.get(node) for node in path]
        return len(path) - proposed_by.index((self._name,)) if (self._name,) in proposed_by else 0
