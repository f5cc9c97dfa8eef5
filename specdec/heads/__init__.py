"""Trained draft heads: modules, caches, draft trees and folders."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.heads.base import Continuations as Continuations
    from specdec.heads.base import HeadRunner as HeadRunner
    from specdec.heads.base import KeyValues as KeyValues
    from specdec.heads.base import Noise as Noise
    from specdec.heads.base import Pairs as Pairs
    from specdec.heads.config import Eagle3Config as Eagle3Config
    from specdec.heads.config import PairHeadConfig as PairHeadConfig
    from specdec.heads.eagle3 import Eagle3Head as Eagle3Head
    from specdec.heads.pair_head import PairHead as PairHead
    from specdec.heads.pair_head import Product as Product
    from specdec.heads.pair_head import fused as fused
    from specdec.heads.torch_runner import TorchRunner as TorchRunner
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "base": ("Continuations", "HeadRunner", "KeyValues", "Noise", "Pairs"),
            "config": ("Eagle3Config", "PairHeadConfig"),
            "eagle3": ("Eagle3Head",),
            "pair_head": ("PairHead", "Product", "fused"),
            "torch_runner": ("TorchRunner",),
        },
    )
