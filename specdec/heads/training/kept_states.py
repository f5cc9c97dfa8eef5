"""A target's states of packed rows, kept in memory while they fit: most of a training's time is their computation."""

import torch

from specdec.heads.training.packing import PackedRows
from specdec.heads.training.target import States, TargetStates
from specdec.machine.facts import free_bytes

_SHARE = 0.3  # of the free memory at first
_IF_UNKNOWN = 2**31


class KeptStates:
    """Computes the states of rows once, and returns them again as long as there was memory to keep them.

    Args:
        target: runs the target.
        most_bytes: of the states kept; None for a share of its device's free memory.

    Attributes:
        num_bytes: of the states kept so far.
    """

    def __init__(self, target: TargetStates, most_bytes: int | None = None) -> None:
        self.target, self.num_bytes = target, 0
        self._most = most_bytes if most_bytes is not None else self._fitting(target.model.device)
        self._kept = dict[tuple[int, int], tuple[PackedRows, States]]()

    def of(self, rows: PackedRows) -> States:
        """Return the states of rows, which may be on another device, and mustn't change."""
        key = rows.tokens.data_ptr(), len(rows)
        if key in self._kept:
            return self._kept[key][1]
        there = rows.to(self.target.model.device)
        states = self.target.of(there.tokens, there.positions, there.visible())
        size = states.layers.nbytes + states.final.nbytes
        if self.num_bytes + size <= self._most:
            self.num_bytes += size
            self._kept[key] = rows, states  # with the rows, whose address is the key
        return states

    @staticmethod
    def _fitting(device: torch.device) -> int:
        free = free_bytes(device)
        return _IF_UNKNOWN if free is None else int(_SHARE * free)
