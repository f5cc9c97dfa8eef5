"""The loss budget: drafts lose at most a share of plain decoding's time, however wrong costs and probabilities are."""

_FIRST, _MOST = 2.0, 16.0  # plain steps: what a generator may lose before it knows better, and easy text pays for hard
_LARGEST_DEBT = 0.25  # so that drafts aren't out for ever after a bad time
_LARGEST_DEBT_OF_TRIALS = 8.0  # which are made whatever drafts are believed to cost
_RESUMES_AT = 0.1  # a search for drafts takes time, too: enough for one
_PAUSE, _LONGEST_PAUSE = 64, 512  # steps before a trial; each trial doubles the next pause
_TRIAL = 3  # steps of a trial: a plain one, and two to compare with it


class Pause:
    """Counts the steps since something last paid, so that it is tried again: what it costs or brings may have changed.

    The first pause is short, and each is twice as long as the one before it.

    Attributes:
        num_idle: steps since it was made, or began anew.
    """

    def __init__(self) -> None:
        self.num_idle, self._num_steps, self._length = 0, 0, _PAUSE

    def step(self, may_try: bool) -> int:
        """Count a step; return its number in a trial, 0 outside of one. A trial begins once it ``may_try``."""
        self.num_idle += 1
        if self._num_steps == self._length + _TRIAL:
            self._num_steps, self._length = 0, min(_LONGEST_PAUSE, 2 * self._length)
        if self._num_steps != self._length or may_try:
            self._num_steps += 1
        return max(0, self._num_steps - self._length)

    def begin_anew(self) -> None:
        """Begin the pause anew, as long as it was."""
        self.num_idle = self._num_steps = 0


class LossBudget:
    """Plain steps, of as many rows as decode, that drafts may lose now; a head's passes spend from it as well.

    Each step adds ``loss``, and each accepted draft token one. Nothing is spent that the balance doesn't have, except
    in trials: the balance bounds losses and doesn't end gains, so after a pause small drafts show what drafts cost and
    bring by then. What a trial loses is paid before the next one.

    Attributes:
        loss: share of plain decoding's time.
        has_trials: small drafts are tried after pauses; the time of steps then shows what they cost.
        balance: what is left.
        trial: the number of the step under way in a trial, from 1, which is a plain step; 0 outside of one.
        is_used_up: drafts aren't even searched for.
    """

    def __init__(self, loss: float, has_trials: bool) -> None:
        self.loss, self.has_trials = loss, has_trials
        self.forget()

    def forget(self) -> None:
        """Forget what the texts of earlier requests brought."""
        self.balance, self.trial, self.is_used_up = _FIRST, 0, False
        self._pause, self._began_with = Pause(), _FIRST

    def begin(self) -> None:
        """Begin a step."""
        self.balance = self._began_with = min(_MOST, self.balance + self.loss)
        self.trial = self._pause.step(self.balance >= 0.0) if self.has_trials else 0
        self.is_used_up = not self.trial and self.balance < (_RESUMES_AT if self.is_used_up else 0.0)

    def may_spend(self, cost: float) -> bool:
        """Return True if the balance has a cost, or in a trial."""
        return self.trial > 0 or cost <= self.balance

    def spend(self, cost: float) -> None:
        """Take out what a draft, or a pass of a head, costs beyond a plain step; a negative cost is given back."""
        self.balance -= cost

    def end(self, num_accepted: float, has_paid: bool) -> None:
        """End a step.

        Args:
            num_accepted: draft tokens of a row.
            has_paid: a draft was made because it was expected to pay.
        """
        if has_paid and not self.trial:
            self._pause = Pause()
        least = -_LARGEST_DEBT_OF_TRIALS if self.trial else min(-_LARGEST_DEBT, self._began_with)
        self.balance = max(least, min(_MOST, self.balance + num_accepted))
