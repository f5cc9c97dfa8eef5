"""The account of what drafts cost and bring, in plain steps; it decides how large a step's drafts are."""

from collections import defaultdict
from collections.abc import Sequence

from specdec.decoding.record import Outcome, StepRecord
from specdec.strategies.growth import Growth
from specdec.strategies.prices import Prices
from specdec.strategies.windows import Windows

_FIRST_DEPOSIT = 2.0  # plain steps of one row: what a generator may lose before it knows better
_MOST_OWED = 0.25  # so that a bad time isn't paid for ever
_ENOUGH = 0.1  # to draft again, once nothing was left
_MOST_SAVED = 4.0  # so that text which is easily guessed doesn't pay for long stretches of text that isn't
_WORTH_IT = 1.05  # speed over plain decoding's: below, what is not known of a draft may as well be a loss
_LEAST_CHANCE = 0.005  # of any node, those too that go in because another request's draft made the step wider


class Account:
    """A balance, in plain steps of as many rows as decode just now, and the prices that drafts are weighed against."""

    def __init__(self, prices: Prices, loss: float) -> None:
        self.prices, self.loss = prices, loss
        self.balance = _FIRST_DEPOSIT
        self._windows: defaultdict[int, Windows] = defaultdict(Windows)  # by rows
        self._num_rows = 1  # of the balance's steps
        self._num_others = 0  # rows of the last pass that had another strategy
        self._charged = 0.0  # of the step under way
        self._is_resting = False
        self._is_plain = False  # the step under way: nothing is drafted in it
        self._feeds_extra: bool | None = None  # None where there is nothing to feed besides

    def rests(self, num_rows: int) -> bool:
        """Begin a step; True if nothing is to be drafted in it.

        Either nothing is left to draft with, and drafting takes time even where nothing comes of it, or a plain step is
        due for drafted ones to be held against.
        """
        self._exchange(num_rows + self._num_others)
        self.balance = min(_MOST_SAVED, self.balance + self.loss)
        self._is_resting = self.balance < (_ENOUGH if self._is_resting else 0.0)
        self._is_plain = self._is_resting or (not self._num_others and self.prices.needs_plain(num_rows))
        self._feeds_extra, self._charged = None, 0.0
        return self._is_plain

    def _exchange(self, num_rows: int) -> None:
        """Count the balance in steps of so many rows: what was saved in short ones isn't lost in as many long ones."""
        if num_rows != self._num_rows:
            self.balance *= self.prices.plain(self._num_rows) / self.prices.plain(num_rows)
            self._num_rows = num_rows

    def least_chance(self, num_rows: int) -> float:
        """A chance that no node of a step of so many rows may be below, whatever else it has."""
        return max(_LEAST_CHANCE, 0.0 if num_rows + self._num_others > 1 else self.prices.table(1).least)

    def grow(self, growths: Sequence[Growth], limits: Sequence[int], num_extra: int | None = None) -> tuple[int, bool]:
        """Grow trees to the size at which a step is expected to bring most tokens for its time, and pay for it.

        With width w, the expected speed over plain decoding is (1 + chances per row) / c(w). A further node pays while
        its chance is above that speed times what the node costs.

        Args:
            limits: nodes below the root that each tree may have.
            num_extra: nodes of the widest row that may be fed besides, for what they teach; None where none may.

        Returns:
            The nodes of each tree that are to be fed, the root included, and whether the others are.
        """
        num_rows, fewest, most = len(growths) + self._num_others, min(limits, default=0), max(limits, default=0)
        table = self.prices.table(num_rows)
        costs, floors = table.costs, table.floors
        wide = 1 + (num_extra or 0)
        is_bearable = num_extra is not None and wide < len(costs) and costs[wide] - 1.0 <= self.balance
        feeds_extra = is_bearable and self._windows[num_rows].is_due()
        beside = wide - 1 if feeds_extra else 0
        width, gained, best, speed = 1, 0.0, 1, 1.0 / costs[1 + beside]
        growing, widest = growths, min(most, len(costs) - 2 - beside)
        while width <= widest:
            if width > fewest:
                growing = [each for each, limit in zip(growths, limits, strict=True) if len(each) <= limit]
            chance = sum([growth.next_chance for growth in growing]) / num_rows
            if chance <= floors[width + beside] * speed or costs[width + 1 + beside] - 1.0 > self.balance:
                break
            for growth in growing:
                if growth.next_chance:
                    growth.take()
            gained, width = gained + chance, width + 1
            wider = (1.0 + gained) / costs[width + beside]
            if wider > speed * (_WORTH_IT if best == 1 else 1.0):
                best, speed = width, wider
        self._charged = costs[best + beside] - 1.0
        self.balance -= self._charged
        if is_bearable:
            self._feeds_extra = feeds_extra
        return best, feeds_extra

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        """Pay in the tokens that drafts brought, and note what the step took."""
        num_rows, self._num_others = record.num_rows, record.num_rows - len(outcomes)
        if self._feeds_extra is not None and record.kind == "step":
            tokens = sum(len(outcome.tokens) for outcome in outcomes) / num_rows
            self._windows[num_rows].note(self._feeds_extra, tokens, 1.0 + self._charged)
        if any(outcome.tree is not None and len(outcome.tree) > 1 for outcome in outcomes):
            earned = sum(max(0, len(outcome.tokens) - 1) for outcome in outcomes) / num_rows
            self.balance = min(_MOST_SAVED, self.balance + earned)
        if record.kind == "step" and record.is_settled and not self._num_others:  # else the time is others' as well
            taken = self.prices.note(num_rows, record.width, record.total_seconds, self._is_plain)
            if taken is not None:  # what is charged is what it turns out to be
                self.balance += self._charged - (taken - 1.0)
                self.balance = max(-_MOST_OWED, min(_MOST_SAVED, self.balance))

    def forget(self) -> None:
        """Forget what the texts of earlier requests brought."""
        self.balance, self._num_rows = _FIRST_DEPOSIT, 1
        self._windows.clear()
