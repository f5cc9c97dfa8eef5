"""The decision to pad passes over one token, where a change to passes over more tokens takes longer.

In padded passes the first draft tokens cost nothing, and no step pays for a change. So padding is decided for stretches
of steps: it begins once padded passes were expected to win a change there and back, and ends once they were expected
to lose as much. This is the work function algorithm for two states, which is at most three times as bad as a choice
with hindsight (Borodin, Linial and Saks 1992, "An Optimal On-line Algorithm for Metrical Task System").
"""


class RootPadding:
    """Decides whether the passes of a row are padded.

    Attributes:
        is_on: passes are padded, those of a root without draft tokens too.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._lost = 0.0  # plain steps that padding is expected to have lost lately
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self._before = self.is_on, self._lost

    def choose(self, gain: float, cost_of_changes: float, is_bound: bool = False) -> bool:
        """Return whether the step's pass is padded; of several calls in a step the last one counts.

        Args:
            gain: tokens that a padded pass is expected to win over a root alone, beyond those that its time is worth.
            cost_of_changes: of the change there and back, in plain steps.
            is_bound: the step is padded whatever it wins, since passes of a head have run for its drafts.
        """
        was_on, lost = self._before
        self._lost = min(cost_of_changes, max(0.0, lost - gain))
        is_chosen = (self._lost < cost_of_changes or gain > 0.0) if was_on else self._lost <= 0.0 < gain
        self.is_on = is_bound or is_chosen
        return self.is_on
