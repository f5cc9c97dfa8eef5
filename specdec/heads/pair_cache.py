"""Caches of a head's keys and values, of pairs that were fed with the target's states and of nothing else."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specdec.heads.base import DraftHead, HeadRunner, KeyValues, Pairs


class PairCache:
    """The head's keys and values of one request, for pairs fed with the target's states.

    Args:
        head: the head.
        num_slots: the runner's, which returns the number of slots to reserve where ``count`` are needed.
    """

    def __init__(self, head: DraftHead, num_slots: Callable[[int], int] = lambda count: count) -> None:
        self._length, self._num_slots, self._slots = 0, num_slots, head.no_key_values()

    def __len__(self) -> int:
        return self._length

    @property
    def key_values(self) -> KeyValues:
        """Those of all pairs, (1, key-value heads, pairs, head_dim) each; overwritten by later passes."""
        return KeyValues(*(each[:, :, : self._length] for each in self._slots))

    @property
    def keys(self) -> torch.Tensor:
        """(pairs, key-value heads, head_dim), rotated."""
        return self._slots.keys[0, :, : self._length].transpose(0, 1)

    @property
    def values(self) -> torch.Tensor:
        """(pairs, key-value heads, head_dim)."""
        return self._slots.values[0, :, : self._length].transpose(0, 1)

    def reserve(self, num_slots: int) -> KeyValues:
        """Return the keys and values of all slots, at least ``num_slots``; those after the last pair are unused."""
        if self._slots.keys.shape[2] < num_slots:
            larger = KeyValues(*(zeros_like(each, 1, num_slots) for each in self._slots))
            for old, new in zip(self._slots, larger, strict=True):
                new[:, :, : self._length] = old[:, :, : self._length]
            self._slots = larger
        return self._slots

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Append the keys and values, (pairs, key-value heads, head_dim), of further pairs."""
        start, stop = self._length, self._length + len(keys)
        if stop > self._slots.keys.shape[2]:
            self.reserve(self._num_slots(stop + stop // 2))
        for slots, new in zip(self._slots, (keys, values), strict=True):
            slots[0, :, start:stop] = new.transpose(0, 1)
        self._length = stop

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` pairs."""
        self._length = min(length, self._length)

    def advance(self, count: int) -> None:
        """Count the next ``count`` slots as pairs, whose keys and values a pass has written there."""
        self._length += count


def append(head: DraftHead, cache: PairCache, states: torch.Tensor, tokens: torch.Tensor) -> None:
    """Append pairs to a cache, for pairs that nothing is drafted after.

    Args:
        head: the head.
        cache: of one request.
        states: (n, states size), the target's states at positions i of the new pairs.
        tokens: (n,), the tokens at positions i + 1.
    """
    new = head.key_values(states[None].to(cache.keys.dtype), tokens[None], cache.key_values)
    cache.append(*(each[0].transpose(0, 1) for each in new))


def prefill(runner: HeadRunner, cache: PairCache, states: torch.Tensor, tokens: Sequence[int]) -> None:
    """Append pairs of a prompt to a cache as ``append`` does, by passes of the runner if it prefers them."""
    if runner.num_reads is None:
        append(runner.head, cache, states, torch.tensor(tokens, device=states.device))
        return
    for first in range(0, len(tokens), runner.num_reads):
        part = np.array([tokens[first : first + runner.num_reads]])
        start, count = len(cache), part.shape[1]
        positions, of_part = start + np.arange(count)[None], states[None, first : first + count]
        pairs = Pairs(part, positions, np.array([start]), of_part, fuses=True, last=np.array([count - 1]))
        runner.run(pairs, cache.reserve(runner.num_slots(start + len(tokens) - first)))
        cache.advance(count)


def zeros_like(like: torch.Tensor, requests: int, num_slots: int) -> torch.Tensor:
    """Return zeros in the form of keys or values, (…, key-value heads, …, size); on a CPU without torch's threads."""
    shape = requests, like.shape[1], num_slots, like.shape[3]
    if not like.is_cpu:
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(shape, f"i{like.itemsize}")).view(like.dtype)
