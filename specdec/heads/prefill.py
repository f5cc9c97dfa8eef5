"""The prefill of a head: pairs of the prompt that are cached, and that nothing is drafted after."""

from collections.abc import Sequence

import numpy as np
import torch

from specdec.heads.base import HeadRunner, Pairs
from specdec.heads.pair_cache import PairCache, append


def prefill(runner: HeadRunner, cache: PairCache, states: torch.Tensor, tokens: Sequence[int]) -> None:
    """Append pairs to a cache as ``append`` does, by passes of the runner if it prefers them."""
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
