"""Keyed randomness: noise is a function of (seed, purpose, position), never of what was drawn before.

The generator is Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), as numpy ships
it. Entry x of the noise at absolute position t is made from output x of the generator whose key is
``(seed, purpose)`` and whose counter starts at ``(0, t, 0, 0)``::

    u_x = ((output_x >> 12) + 0.5) * 2**-52             uniform on (0, 1), never 0 or 1
    g_x = -log(-log(u_x))                               standard Gumbel
    token at position t = argmax_x (log p(x) + g_x)     a draw from p (the Gumbel-max trick)

All in float64. The purpose is 0 for verification, 2**32 + 1 for the uniforms of ``accept``, which are used one after
another, and one more than the CRC-32 of its class's name for a proposer, so that none shares the verifier's noise by
accident.
"""

import zlib
from typing import Protocol

import numpy as np
import torch

VERIFICATION = 0
ACCEPTANCE = 2**32 + 1
_MOST_FORESEEN = 16  # positions: as deep as drafts of draws go


class Chances(Protocol):
    """The two random primitives of every acceptance rule; a test enumerates their outcomes instead of drawing them."""

    def accept(self, r: float, q: float) -> bool:
        """Return True if u * q < r for a fresh uniform u on [0, 1): with probability min(1, r / q).

        The comparison is strict, so that r = 0 is never accepted. It has no division, so that q = 0 needs no care.
        """

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        """A draw from ``weights``, shape ``(vocab,)``, which need not sum to one; zero weights are never drawn.

        Where all weights are zero the answer is 0.
        """


class Randomness:
    """The random numbers of one request."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._acceptance = np.random.Generator(np.random.Philox(key=[seed, ACCEPTANCE]))
        self._foreseen: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # the verifier's, the drafter's

    def uniforms(self, position: int, count: int) -> np.ndarray:
        """Uniforms of the verification stream at an absolute position, shape ``(count,)``, on (0, 1)."""
        philox = np.random.Philox(key=[self.seed, VERIFICATION], counter=[0, position, 0, 0])
        bits = philox.random_raw(count) >> np.uint64(12)
        return (bits.astype(np.float64) + 0.5) * 2.0**-52

    def gumbel(self, position: int, count: int) -> torch.Tensor:
        """Standard Gumbel noise at an absolute position, shape ``(count,)``, float64 on the CPU; not to be written to.

        What was foreseen of earlier positions is let go.
        """
        self._foreseen = {known: both for known, both in self._foreseen.items() if known[0] >= position}
        both = self._foreseen.get((position, count))
        return self._gumbel(position, count) if both is None else both[0]

    def foresee(self, position: int, count: int) -> torch.Tensor:
        """The same for a drafter, a copy that it may spoil; kept for the verifier, which will ask for it as well."""
        both = self._foreseen.get((position, count))
        if both is None:
            noise = self._gumbel(position, count)
            both = noise, noise.clone()
            if len(self._foreseen) < _MOST_FORESEEN:
                self._foreseen[position, count] = both
        return both[1]

    def _gumbel(self, position: int, count: int) -> torch.Tensor:
        return torch.from_numpy(-np.log(-np.log(self.uniforms(position, count))))

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        """As ``Chances`` says, with the noise of ``position``."""
        noise = self.gumbel(position, weights.numel()).to(weights.device)
        return int((weights.double().log() + noise).argmax())

    def accept(self, r: float, q: float) -> bool:
        """As ``Chances`` says, with the next uniform of its stream."""
        return self._acceptance.random() * q < r

    def stream(self, purpose: str) -> np.random.Generator:
        """A stream of its own for a proposer, keyed by the seed and the proposer's name."""
        return np.random.Generator(np.random.Philox(key=[self.seed, zlib.crc32(purpose.encode()) + 1]))
