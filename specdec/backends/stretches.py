"""Divides rows into stretches of neighbours; attention is called once per stretch, up to its longest row's end."""

from collections.abc import Sequence

import torch

_CALL = 2**16  # numbers of keys that two cores read in the time that a call takes


def stretches_of(ends: Sequence[int], slot_size: int) -> list[tuple[slice, int]]:
    """Divide rows into the stretches of least cost, counting calls and the slots that they read.

    Args:
        ends: by row, the number of slots up to the last visible one.
        slot_size: numbers in the keys of a slot.

    Returns:
        The rows of each stretch, and the number of slots that it reads.
    """
    call = _CALL / slot_size
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # by number of rows: cost, start and slots of the last stretch
    for stop in range(1, len(ends) + 1):
        choices, longest = [], 0
        for start in reversed(range(stop)):
            longest = max(longest, ends[start])
            choices.append((best[start][0] + call + (stop - start) * longest, start, longest))
        best.append(min(choices))
    stretches, stop = list[tuple[slice, int]](), len(ends)
    while stop:
        _, start, longest = best[stop]
        stretches.append((slice(start, stop), longest))
        stop = start
    return stretches[::-1]


def ends_of(mask: torch.Tensor) -> list[int]:
    """Return, by row, the number of slots up to the last that any node sees.

    The mask is additive, ``(rows, heads, width, slots)``.
    """
    seen = (mask > torch.finfo(mask.dtype).min).any(1).any(1)
    unseen = seen.flip(1).to(torch.uint8).argmax(1)
    ends: list[int] = (seen.shape[1] - unseen).tolist()
    return ends
