"""Stretches of neighbouring rows: each is attended in one call, and read to its longest row's end."""

from collections.abc import Sequence

import torch

_CALL = 2**16  # numbers of keys that two cores read in the time that a call takes


def stretches_of(ends: Sequence[int], slot_size: int) -> list[tuple[slice, int]]:
    """Divide rows into stretches so that calls, and slots read up to the end of a stretch's longest row, cost least.

    Args:
        ends: by row, the number of slots up to the last that is seen.
        slot_size: numbers in the keys of a slot.

    Returns:
        The rows of each stretch, and the slots that are read of each.
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
    """By row, the slots up to the last that any node sees under an additive mask, (rows, heads, width, slots)."""
    seen = (mask > torch.finfo(mask.dtype).min).any(1).any(1)
    unseen = seen.flip(1).to(torch.uint8).argmax(1)
    ends: list[int] = (seen.shape[1] - unseen).tolist()
    return ends
