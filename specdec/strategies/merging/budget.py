"""The account of what drafts cost and bring, in plain steps; it decides how large a step's drafts are."""

from collections import defaultdict
from collections.abc import Sequence

from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.growth import Growth
from specdec.strategies.merging.prices import Prices
from specdec.strategies.merging.windows import Windows

_FIRST_DEPOSIT = 2.0  # plain steps of one row: what a generator may lose before it knows better
_MOST_OWED = 0.25  # so that a bad time isn't paid for ever
_ENOUGH = 0.1  # beside what the search for drafts takes, to draft again once nothing was left
_MOST_SAVED = 4.0  # so that text which is easily guessed doesn't pay for long stretches of text that isn't
_WORTH_IT = 1.05  # speed over that of a step without a draft: below, what is not known of a draft may as well be a loss
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
        self._is_resting = self.balance < (self._enough(num_rows) if self._is_resting else 0.0)
        self._is_plain = self._is_resting or (not self._num_others and self.prices.needs_plain(num_rows))
        self._feeds_extra, self._charged = None, 0.0
        return self._is_plain

    def _enough(self, num_rows: int) -> float:
        """The balance at which a rest ends: the search for drafts is borne, and a draft as well."""
        return _ENOUGH + self.prices.table(num_rows + self._num_others).costs[1] - 1.0

    def _exchange(self, num_rows: int) -> None:
        """Count the balance in steps of so many rows: what was saved in short ones isn't lost in as many long ones."""
        if num_rows != self._num_rows:
            self.balance *= self.prices.plain(self._num_rows) / self.prices.plain(num_rows)
            self._num_rows = num_rows

    def least_chance(self, num_rows: int) -> float:
        """A chance that no node of a step of so many rows may be below, whatever else it has."""
        num_rows += self._num_others
        if self.prices.rounds.shares_room and num_rows > 1:
            return _LEAST_CHANCE
        table = self.prices.table(num_rows)
        return max(_LEAST_CHANCE, num_rows * table.least / table.costs[1])

    def grow(
        self, growths: Sequence[Growth], limits: Sequence[int], num_extra: int | None = None
    ) -> tuple[list[int], bool]:
        """Grow trees to the sizes at which a step is expected to bring most tokens for its time, and pay for it.

        After n rounds, the expected speed over plain decoding is (1 + chances per row) / c(n). A further round pays
        while its nodes' chances are above that speed times what it costs.

        Args:
            limits: nodes below the root that each tree may have.
            num_extra: nodes of the widest row that may be fed besides, for what they teach; None where none may.

        Returns:
            The number of nodes to feed of each tree, the root included, and True if the extra ones are fed as well.
        """
        num_rows = len(growths) + self._num_others
        table = self.prices.table(num_rows)
        costs, floors = table.costs, table.floors
        wide = 1 + (num_extra or 0)
        is_bearable = num_extra is not None and wide < len(costs) and costs[wide] - 1.0 <= self.balance
        feeds_extra = is_bearable and self._windows[num_rows].is_due()
        beside = wide - 1 if feeds_extra else 0
        rounds = self.prices.rounds(growths, limits)
        place, gained, best, speed = 1, 0.0, 1, 1.0 / costs[1 + beside]
        while place + beside < len(costs) - 1 and (growing := rounds.next()):
            chance = sum([growth.next_chance for growth in growing]) / num_rows
            if chance <= floors[place + beside] * speed or costs[place + 1 + beside] - 1.0 > self.balance:
                break
            for growth in growing:
                if growth.next_chance:
                    growth.take()
            gained, place = gained + chance, place + 1
            faster = (1.0 + gained) / costs[place + beside]
            if faster > speed * (_WORTH_IT if best == 1 else 1.0):
                best, speed = place, faster
        self._charged = costs[best + beside] - 1.0
        self.balance -= self._charged
        if is_bearable:
            self._feeds_extra = feeds_extra
        return rounds.sizes(best - 1), feeds_extra

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
            place = self.prices.rounds.place(record)
            searching = record.seconds.get("propose", 0.0)
            taken = self.prices.note(num_rows, place, record.total_seconds, searching, self._is_plain)
            if taken is not None:  # what is charged is what it turns out to be
                self.balance += self._charged - (taken - 1.0)
                self.balance = max(-_MOST_OWED, min(_MOST_SAVED, self.balance))

    def forget(self) -> None:
        """Forget what the texts of earlier requests brought."""
        self.balance, self._num_rows = _FIRST_DEPOSIT, 1
        self._windows.clear()
