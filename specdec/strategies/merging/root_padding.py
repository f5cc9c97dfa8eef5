"""Whether a root without draft tokens is padded, where a change between passes of one token and of more takes longer.

Within padded passes the first draft tokens cost nothing, and no step pays for a change. So what is chosen is the sort
of pass for a stretch of steps, not for each: passes are padded while that is expected to win, compared with roots
alone, and are no longer once it was expected to lose as much as a change and the way back cost. This is the rule of
work functions for two states, which loses at most three times what a choice with hindsight does (Borodin, Linial and
Saks 1992, "An Optimal On-line Algorithm for Metrical Task System").
"""


class RootPadding:
    """Chooses between padded passes and roots alone.

    Attributes:
        is_on: passes are padded, those of a root without draft tokens too.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._lost = 0.0  # plain steps that padded passes are expected to have lost lately
        self._before = self.is_on, self._lost  # the step under way

    def begin(self) -> None:
        """Begin a step."""
        self._before = self.is_on, self._lost

    def choose(self, gain: float, cost_of_changes: float) -> bool:
        """Return whether the step's pass is padded; the last call in a step counts.

        Args:
            gain: tokens that the padded pass is expected to win, less those of plain decoding in the same time.
            cost_of_changes: of one to padded passes and of the one back, in plain steps.
        """
        was_on, lost = self._before
        self._lost = min(cost_of_changes, max(0.0, lost - gain))
        if was_on:
            self.is_on = self._lost < cost_of_changes or gain > 0.0
        else:
            self.is_on = self._lost <= 0.0 < gain
        return self.is_on

    def end(self, cost_of_changes: float) -> None:
        """Begin with roots alone: padded passes have lost what they may lose."""
        if self.is_on:
            self.is_on, self._lost = False, cost_of_changes
            self.begin()
