"""The costs of steps on dynamic graphs, where a pass of another size than the one before takes longer.

Such a pass computes the shapes of all operations again. A draft beyond the size of plain steps costs two changes: that
of its own pass, and that of the next plain one.
"""

from collections import deque
from dataclasses import replace
from statistics import median

import numpy as np

from specdec.costs import Costs, CostTable, StepCosts
from specdec.record import StepRecord
from specdec_openvino.engine.filling import Filling

_CHANGE = 0.3  # plain steps of a change, until one was seen: 0.2 to 0.5 for SmolLM2
_MOST = 9  # changes that count


class ChangeCosts(StepCosts):
    """c(T) as it is learnt, and changes of the size of passes, as they are learnt from plain steps after them.

    Args:
        filling: pads the passes, and knows the sizes of the last two.
    """

    def __init__(self, measured: Costs, max_size: int, learns: bool, filling: Filling) -> None:
        super().__init__(measured, max_size, learns)
        self._filling, self._size = filling, 0
        self._seconds = deque([0.0 if filling.static_sizes else _CHANGE * measured.plain], maxlen=_MOST)  # of changes
        self._changed = 0.0  # seconds of the last step, if its pass was of the size of plain steps and a change

    def table(self, num_rows: int) -> CostTable:
        if self._size != self._filling.size:
            self._size = self._filling.size
            self._tables.clear()
        return super().table(num_rows)

    def costs_of(self, num_rows: int) -> np.ndarray:
        costs, sizes = super().costs_of(num_rows), self.filled(num_rows) * num_rows
        num_changes = (sizes != self._size).astype(int) + (sizes != sizes[0]) - int(sizes[0] != self._size)
        return costs + num_changes * median(self._seconds) / self._measured.at(num_rows)

    def learn(self, record: StepRecord, is_plain: bool) -> None:
        filling, seconds = self._filling, record.total_seconds
        is_change = filling.size != filling.size_before
        is_of_plain = filling.size == filling.padding.size_of_rows(record.num_decoding, 1)
        if self._changed and is_of_plain and not is_change:
            self._seconds.append(max(0.0, self._changed - seconds))
        self._changed = seconds if is_change and is_of_plain else 0.0
        if is_change:  # what costs_of adds
            seconds = max(0.5 * seconds, seconds - median(self._seconds))
        super().learn(replace(record, seconds={"forward": seconds}), is_plain)
