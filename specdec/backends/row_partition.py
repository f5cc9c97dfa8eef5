"""Partitions the rows of a batch by length; attention is called once per part, up to the end of its longest row."""

from collections.abc import Sequence

import torch

_CALL = 2**16  # numbers of keys that two cores read in the time that a call takes


def partition_rows(lengths: Sequence[int], slot_size: int) -> list[tuple[slice, int]]:
    """Partition rows into runs of consecutive ones at the least cost, counting calls and the slots that they read.

    Args:
        lengths: by row, the number of slots up to the last visible one.
        slot_size: numbers in the keys of a slot.

    Returns:
        The rows of each part, and the number of slots that it reads: the length of its longest row.
    """
    call = _CALL / slot_size
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # by number of rows: cost, start and slots of the last part
    for stop in range(1, len(lengths) + 1):
        choices, longest = [], 0
        for start in reversed(range(stop)):
            longest = max(longest, lengths[start])
            choices.append((best[start][0] + call + (stop - start) * longest, start, longest))
        best.append(min(choices))
    parts, stop = list[tuple[slice, int]](), len(lengths)
    while stop:
        _, start, longest = best[stop]
        parts.append((slice(start, stop), longest))
        stop = start
    return parts[::-1]


def visible_lengths(mask: torch.Tensor) -> list[int]:
    """Return, by row, the number of slots up to the last that any node sees.

    The mask is additive, ``(rows, heads, width, slots)``.
    """
    seen = (mask > torch.finfo(mask.dtype).min).any(1).any(1)
    unseen = seen.flip(1).to(torch.uint8).argmax(1)
    lengths: list[int] = (seen.shape[1] - unseen).tolist()
    return lengths
