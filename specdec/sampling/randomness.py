"""Keyed randomness: noise is a function of (seed, purpose, position), not of earlier draws.

The generator is Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), as numpy ships
it. Entry x of the noise at absolute position t is made from output x of the generator whose key is
``(seed, purpose)`` and whose counter starts at ``(0, t, 0, 0)``::

    u_x = ((output_x >> 12) + 0.5) * 2**-52             uniform on (0, 1), never 0 or 1
    g_x = -log(-log(u_x))                               standard Gumbel
    token at position t = argmax_x (log p(x) + g_x)     a draw from p (the Gumbel-max trick)

All in float64. The purpose is 0 for verification, 2**32 + 1 for the uniforms of ``accept``, which form a running
stream, and for a proposer the CRC-32 of its name plus 1, so that no proposer shares the verifier's noise.

Further samples of one seed have seeds of their own, see ``seed_of_sample``. Their purpose is 2**32 + 2.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

VERIFICATION = 0
ACCEPTANCE = 2**32 + 1
_SAMPLES = 2**32 + 2
_MOST_ENTRIES = 64  # of a distribution, that are drawn from by their own noise alone
_MOST_FORESEEN = 16  # positions: the depth of drafts that use noise


def seed_of_sample(seed: int, number: int) -> int:
    """Return the seed of a sample: of number 0 the given seed, of others one that no other pair is likely to have.

    It is the first output of the generator with the key ``(seed, 2**32 + 2)`` and the counter ``(0, number, 0, 0)``,
    without its lowest bit. Were it ``seed + number``, the samples of neighbouring seeds would be the same texts.
    """
    if number == 0:
        return seed
    return int(np.random.Philox(key=[seed, _SAMPLES], counter=[0, number, 0, 0]).random_raw() >> 1)


class RandomSource(Protocol):
    """The two random primitives of acceptance rules. Tests enumerate their outcomes."""

    def accept(self, r: float, q: float) -> bool:
        """Return True if u * q < r for a fresh uniform u on [0, 1): with probability min(1, r / q).

        The comparison is strict, so r = 0 is never accepted, and has no division, so q = 0 is safe.
        """

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        """A draw from ``weights``, ``(vocab,)``, which need not sum to one; 0 if all weights are zero.

        Tokens with zero weight are never drawn.
        """


class Randomness:
    """The random numbers of one request."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._acceptance = np.random.Generator(np.random.Philox(key=[seed, ACCEPTANCE]))
        # By position and size: the verifier's noise, and the drafter's copy.
        self._foreseen: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def uniforms(self, position: int, count: int) -> np.ndarray:
        """Uniforms of the verification stream at an absolute position, ``(count,)``, on (0, 1)."""
        return _uniform(self._verification(position).random_raw(count))

    def uniforms_at(self, position: int, entries: Sequence[int]) -> np.ndarray:
        """Some entries of ``uniforms``, in ascending order; a few take less time than all."""
        philox, num_read, found, block = self._verification(position), 0, list[int](), np.zeros(4, np.uint64)
        for number, entry in (divmod(each, 4) for each in entries):
            if number >= num_read:  # else it is in the same block of four as the one before
                philox.advance(number - num_read)
                block, num_read = philox.random_raw(4), number + 1
            found.append(block[entry])
        return _uniform(np.array(found))

    def _verification(self, position: int) -> np.random.Philox:
        return np.random.Philox(key=[self.seed, VERIFICATION], counter=[0, position, 0, 0])

    def gumbel(self, position: int, count: int) -> torch.Tensor:
        """Standard Gumbel noise at an absolute position, ``(count,)``, float64 on the CPU; read-only.

        Drops the noise cached by ``foresee`` for earlier positions.
        """
        self._foreseen = {known: both for known, both in self._foreseen.items() if known[0] >= position}
        both = self._foreseen.get((position, count))
        return _gumbel(self.uniforms(position, count)) if both is None else both[0]

    def foresee(self, position: int, count: int) -> torch.Tensor:
        """The same noise for a drafter, as a copy of its own; cached for the verifier."""
        both = self._foreseen.get((position, count))
        if both is None:
            noise = _gumbel(self.uniforms(position, count))
            both = noise, noise.clone()
            if len(self._foreseen) == _MOST_FORESEEN:
                del self._foreseen[min(self._foreseen)]
            self._foreseen[position, count] = both
        return both[1]

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        """See ``RandomSource``; uses the noise of ``position``."""
        is_possible = weights > 0.0
        if not weights.is_cpu or torch.count_nonzero(is_possible) > _MOST_ENTRIES:
            noise = self.gumbel(position, weights.numel()).to(weights.device)
            return int((weights.double().log() + noise).argmax())
        possible = is_possible.nonzero()[:, 0]
        if len(possible) < 2:
            return int(possible.sum())
        noise = _gumbel(self.uniforms_at(position, possible.tolist()))
        return int(possible[(weights[possible].double().log() + noise).argmax()])

    def accept(self, r: float, q: float) -> bool:
        """See ``RandomSource``; uses the next uniform of the stream."""
        return self._acceptance.random() * q < r

    def stream(self, purpose: str) -> np.random.Generator:
        """A proposer's own stream, keyed by the seed and the proposer's name."""
        return np.random.Generator(np.random.Philox(key=[self.seed, zlib.crc32(purpose.encode()) + 1]))


def _uniform(bits: np.ndarray) -> np.ndarray:
    found: np.ndarray = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return found


def _gumbel(uniforms: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(-np.log(-np.log(uniforms)))
