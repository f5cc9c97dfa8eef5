"""Sorts a text's suffixes by their first tokens.

The first tokens are packed into 64-bit keys, which are sorted. Ties are then sorted by pairs of ranks, which doubles
the number of compared tokens in each round (Manber and Myers 1993; only ties are sorted again, as in Larsson and
Sadakane 1999).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]


def sorted_suffixes(text: Tokens, num_ids: int, depth: int) -> NDArray[np.uint32]:
    """Return the places of all tokens, sorted by at least ``depth`` tokens from there on.

    Args:
        text: ids below ``num_ids``, and breaks, whose places aren't returned; shape ``(size,)``, ending with a break.
    """
    keys, length = _packed(text, num_ids, depth)
    order = np.argsort(keys, kind="stable").astype(np.uint32)
    is_first = _differs(keys[order])
    del keys
    ranks = np.empty(len(text), np.uint32)
    ranks[order] = _groups(is_first, np.arange(len(text), dtype=np.uint32))
    while length < depth:
        is_tied = ~is_first
        is_tied[:-1] |= ~is_first[1:]
        slots = np.flatnonzero(is_tied).astype(np.uint32)
        if not len(slots):
            break
        places = order[slots]
        # A suffix that is cut at the text's end contains a break.
        later = np.minimum(places.astype(np.int64) + length, len(text) - 1)
        pairs = (ranks[places].astype(np.uint64) << np.uint64(32)) | ranks[later]
        by_pair = np.argsort(pairs, kind="stable")
        order[slots] = places[by_pair]
        is_first[slots] = _differs(pairs[by_pair])
        ranks[order[slots]] = _groups(is_first[slots], slots)
        length *= 2
    return order[: int((text < num_ids).sum())]  # breaks are larger than any token


def _packed(text: Tokens, num_ids: int, depth: int) -> tuple[NDArray[np.uint64], int]:
    """Return the first tokens from each place on as one number, and their count."""
    symbols = np.minimum(text, num_ids)
    is_used = np.zeros(num_ids + 1, bool)
    is_used[symbols] = True
    denser = np.cumsum(is_used, dtype=np.uint64) - np.uint64(1)
    symbols = denser[symbols]
    bits = max(1, int(denser[-1]).bit_length())
    length = min(depth, 64 // bits, len(text))
    keys = symbols.copy()
    for offset in range(1, length):
        keys <<= np.uint64(bits)
        keys[: len(text) - offset] |= symbols[offset:]
    return keys, length


def _differs(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return, for each sorted value, whether it differs from the previous one."""
    return np.concatenate(([True], values[1:] != values[:-1]))


def _groups(is_first: NDArray[np.bool_], slots: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return, for each slot, the first slot that is tied with it."""
    return np.maximum.accumulate(np.where(is_first, slots, np.uint32(0)))
