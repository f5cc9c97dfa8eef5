"""Accepted nodes move to the end of a row's text in all layers at once: one launch in Triton, not four per layer."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_MOST_NODES = 32  # of a launch: their numbers are in registers
_NUM_FACTS = 6  # of a buffer: address, strides of rows, heads and slots, heads, size
_INTEGERS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


@triton.jit(do_not_specialize=["row", "to", "count"])
def _move(
    buffers, slots, row, to, count,
    NUM_FACTS: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr, INTEGER: tl.constexpr,
):  # fmt: skip
    """Copy the listed slots of one head of one buffer to the slots from ``to`` on."""
    facts, head = buffers + tl.program_id(0) * NUM_FACTS, tl.program_id(1)
    slot_stride, size = tl.load(facts + 3), tl.load(facts + 5)
    if head < tl.load(facts + 4):
        start = tl.load(facts).to(tl.pointer_type(INTEGER)) + row * tl.load(facts + 1) + head * tl.load(facts + 2)
        nodes, at = tl.arange(0, NODES), tl.arange(0, BLOCK)
        is_moved = nodes < count
        is_inside = is_moved[:, None] & (at < size)[None, :]
        sources = tl.load(slots + nodes, mask=is_moved, other=0)
        numbers = tl.load(start + sources[:, None] * slot_stride + at[None, :], mask=is_inside, other=0)
        tl.debug_barrier()  # one node's source may be another's destination
        tl.store(start + (to + nodes)[:, None] * slot_stride + at[None, :], numbers, mask=is_inside)


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

    def move(self, row: int, slots: torch.Tensor, to: int) -> None:
        """Copy a row's slots to consecutive slots from ``to`` on.

        Args:
            slots: int64, ascending, on the GPU; none is before its destination.
        """
        with torch.cuda.device_of(self._facts):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
            for begin, part in enumerate(torch.split(slots, _MOST_NODES)):
                _move[len(self._facts), self._heads](
                    self._facts, part, row, to + begin * _MOST_NODES, len(part),
                    NUM_FACTS=_NUM_FACTS, NODES=max(16, triton.next_power_of_2(len(part))),
                    BLOCK=triton.next_power_of_2(self._size), INTEGER=self._integer,
                )  # fmt: skip
