"""Sampling: from logits, by processors and temperature, to distributions and tokens."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.sampling.distributions import NodeDistributions as NodeDistributions
    from specdec.sampling.processors import Warper as Warper
    from specdec.sampling.randomness import Randomness as Randomness
    from specdec.sampling.randomness import RandomSource as RandomSource
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
