"""Draft sizes where the number of rows changes all the time, as in a server.

With many rows a draft token costs nearly what a row costs, with few rows next to nothing. So what drafts have lost with
many rows is no reason to make none with few, and what they gain with few isn't there to be lost with many.
"""

from collections.abc import Sequence

from specdec.record import Outcome, StepRecord
from specdec.strategies import DraftSizer, Growth, SpeedupSizer
from specdec_vllm.packed_cost_model import PackedCostModel

# In plain steps: without it, one long prompt would end drafts for longer than its request decodes.
_LARGEST_DEBT_OF_SEARCHES = 4.0


class SizerByRows(DraftSizer):
    """Sizes drafts by a sizer for 1 to 3 rows, one for 4 to 15, and so on: each has its own balance and pauses.

    Args:
        costs: the cost model of all of them.
        loss: share of plain decoding's time that drafts may lose.
    """

    def __init__(self, costs: PackedCostModel, loss: float) -> None:
        self._costs, self._loss = costs, loss
        self.forget()

    def forget(self) -> None:
        self._sizers: dict[int, SpeedupSizer] = {}  # by the power of four that the rows reach
        self._current = self._sizer_for(1)  # of the step under way
        self._is_skipped = False  # that step has no search for drafts

    def _sizer_for(self, num_rows: int) -> SpeedupSizer:
        power = power_of(num_rows)
        if power not in self._sizers:
            self._sizers[power] = SpeedupSizer(self._costs, self._loss)
        return self._sizers[power]

    def skips(self, num_rows: int) -> bool:
        self._current = self._sizer_for(num_rows)
        self._is_skipped = self._current.skips(num_rows)
        self.is_plain, self.cost = self._current.is_plain, self._current.cost
        return self._is_skipped

    def rests(self, num_rows: int) -> bool:
        """Count a step and return True if drafts with so many rows have lost all that they may: texts aren't read."""
        budget = self._sizer_for(num_rows).budget
        if budget.is_used_up:
            budget.begin()
        return budget.is_used_up

    def min_probability(self, num_rows: int) -> float:
        return self._current.min_probability(num_rows)

    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        sizes = self._current.sizes(growths)
        self.cost = self._current.cost
        return sizes

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome], spent: float = 0.0) -> None:
        self._current.learn(record, outcomes, spent)
        if not self._is_skipped:  # the first search reads the texts, which takes many times what the others take
            searching = record.seconds.get("propose", 0.0)
            budget = self._current.budget
            balance = budget.balance
            charged = balance - self._costs.excess_search(len(outcomes), searching)
            budget.balance = max(charged, min(balance, -_LARGEST_DEBT_OF_SEARCHES))


def power_of(num_rows: int) -> int:
    """Return the power of four that a number of rows reaches: 0 for 1 to 3, 1 for 4 to 15, and so on."""
    return (num_rows.bit_length() - 1) // 2
