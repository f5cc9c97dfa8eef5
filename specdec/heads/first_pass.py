"""The pass that a draft begins with: it appends each request's new pairs to its cache, and drafts after the last."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.pair_cache import PairCache, zeros_like


def new_pairs(caches: Sequence[PairCache], states: Sequence[torch.Tensor], tokens: Sequence[Sequence[int]]) -> Pairs:
    """Return the pairs that a draft begins with; the arguments are those of ``TreeGrowth``."""
    counts, starts = np.array([*map(len, tokens)]), np.array([*map(len, caches)])
    num_rows = int(counts.max())
    return Pairs(
        _padded(tokens, num_rows),
        starts[:, None] + np.arange(num_rows),
        starts,
        _padded_states(states, caches[0].keys.dtype),
        fuses=True,
        last=counts - 1,
    )


def first_pass(
    runner: HeadRunner,
    caches: Sequence[PairCache],
    states: Sequence[torch.Tensor],
    tokens: Sequence[Sequence[int]],
    noise: Noise | None,
    num_slots: int = 0,
) -> tuple[Continuations, KeyValues, np.ndarray]:
    """Append pairs to the caches in a pass that drafts after the last of them.

    Args:
        runner, caches, states, tokens, noise: as for ``TreeGrowth``.
        num_slots: slots that the runner needs after the pairs.

    Returns:
        What the runner found; the keys and values of all requests; and the numbers of their pairs, (requests,).
    """
    pairs = new_pairs(caches, states, tokens)
    cache = _reserved(caches, runner.num_slots(int(pairs.positions.max()) + 1 + num_slots))
    found = runner.run(pairs, cache, noise)
    append_written(caches, cache, pairs)
    return found, cache, np.array([*map(len, caches)])


def _padded(tokens: Sequence[Sequence[int]], num_rows: int) -> np.ndarray:
    """Return the requests' tokens, (requests, num_rows), with zeros after the shorter ones."""
    if len(tokens) == 1:
        return np.array(tokens)
    ids = np.zeros((len(tokens), num_rows), np.int64)
    for row, new in enumerate(tokens):
        ids[row, : len(new)] = new
    return ids


def _padded_states(states: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the requests' states, (requests, rows, states size), with zeros after the shorter ones."""
    if len(states) == 1:
        return states[0][None].to(dtype)
    return pad_sequence([each.to(dtype) for each in states], batch_first=True)


def _reserved(caches: Sequence[PairCache], num_slots: int) -> KeyValues:
    """Return the caches' keys and values, with at least ``num_slots`` slots; one's in its own memory."""
    if len(caches) == 1:
        return caches[0].reserve(num_slots)
    stacked = KeyValues(*(zeros_like(each, len(caches), num_slots) for each in caches[0].reserve(0)))
    write_cached(caches, stacked)
    return stacked


def write_cached(caches: Sequence[PairCache], into: KeyValues) -> None:
    """Write the keys and values of each cache to a row."""
    for row, cache in enumerate(caches):
        for slots, each in zip(into, cache.key_values, strict=True):
            slots[row, :, : len(cache)] = each[0]


def append_written(caches: Sequence[PairCache], written: KeyValues, pairs: Pairs) -> None:
    """Append the keys and values that a pass has written to the caches."""
    assert pairs.last is not None, "of new pairs the last are known"
    for row, (cache, start, last) in enumerate(zip(caches, pairs.starts.tolist(), pairs.last.tolist(), strict=True)):
        if written is cache.reserve(0):
            cache.advance(last + 1)
        else:
            cache.append(*(each[row, :, start : start + last + 1].transpose(0, 1) for each in written))
