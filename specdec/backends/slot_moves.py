"""Accepted nodes move to the end of a row's text in all layers at once: one launch in Triton, not four per layer."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_NUM_FACTS = 6  # of a buffer: address, strides of rows, heads and slots, heads, size
_NUM_HEADER = 3  # of a move: row, destination, number of slots
_SLOTS = 32  # that are moved together: their numbers are in registers
_INTEGERS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


@triton.jit(do_not_specialize=["move_stride"])
def _move(
    buffers, moves, move_stride, NUM_FACTS: tl.constexpr, NUM_HEADER: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, INTEGER: tl.constexpr,
):  # fmt: skip
    """Copy a move's slots of one head of one buffer to consecutive slots."""
    facts, head = buffers + tl.program_id(0) * NUM_FACTS, tl.program_id(1)
    move = moves + tl.program_id(2) * move_stride
    slot_stride, size = tl.load(facts + 3), tl.load(facts + 5)
    if head < tl.load(facts + 4):
        start = tl.load(facts).to(tl.pointer_type(INTEGER)) + tl.load(move) * tl.load(facts + 1)
        start += head * tl.load(facts + 2)
        at, begin, count = tl.arange(0, BLOCK), 0, tl.load(move + 2)
        while begin < count:
            number = begin + tl.arange(0, SLOTS)
            is_moved = number < count
            is_inside = is_moved[:, None] & (at < size)[None, :]
            sources = tl.load(move + NUM_HEADER + number, mask=is_moved, other=0)
            numbers = tl.load(start + sources[:, None] * slot_stride + at[None, :], mask=is_inside, other=0)
            tl.debug_barrier()  # one slot may be another's destination, but no later one's
            to = tl.load(move + 1) + number
            tl.store(start + to[:, None] * slot_stride + at[None, :], numbers, mask=is_inside)
            begin += SLOTS


class SlotMoves:
    """The keys and values of all layers, by their places in memory.

    Args:
        buffers: (rows, heads, slots, size) each, of one dtype, on one GPU.
    """

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        facts = [(each.data_ptr(), *each.stride()[:3], each.shape[1], each.shape[3]) for each in buffers]
        self._facts = torch.tensor(facts, device=buffers[0].device)
        self._heads, self._size = (max(each.shape[axis] for each in buffers) for axis in (1, 3))
        self._integer = _INTEGERS[buffers[0].element_size()]

    def move(self, moves: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Copy slots of different rows to consecutive ones.

        Args:
            moves: a row, the first destination, and the slots, ascending, none before its destination.
        """
        most = max(len(slots) for _, _, slots in moves)
        numbers = [(row, to, len(slots), *slots, *[0] * (most - len(slots))) for row, to, slots in moves]
        with torch.cuda.device_of(self._facts):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
            _move[len(self._facts), self._heads, len(moves)](
                self._facts, torch.tensor(numbers, device=self._facts.device), _NUM_HEADER + most,
                NUM_FACTS=_NUM_FACTS, NUM_HEADER=_NUM_HEADER, SLOTS=_SLOTS,
                BLOCK=triton.next_power_of_2(self._size), INTEGER=self._integer,
            )  # fmt: skip
