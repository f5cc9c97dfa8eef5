"""Trained draft heads: modules, caches, draft trees and folders."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.heads.base import Continuations as Continuations
    from specdec.heads.base import HeadRunner as HeadRunner
    from specdec.heads.base import HeadRunners as HeadRunners
    from specdec.heads.base import KeyValues as KeyValues
    from specdec.heads.base import Noise as Noise
    from specdec.heads.base import Pairs as Pairs
    from specdec.heads.block_head import BlockHead as BlockHead
    from specdec.heads.block_runner import BlockRunner as BlockRunner
    from specdec.heads.config import BlockConfig as BlockConfig
    from specdec.heads.config import Eagle3Config as Eagle3Config
    from specdec.heads.config import PairHeadConfig as PairHeadConfig
    from specdec.heads.eagle3 import Eagle3Head as Eagle3Head
    from specdec.heads.graph_runner import runner_by_torch as runner_by_torch
    from specdec.heads.layers import LayerInputs as LayerInputs
    from specdec.heads.layers import Product as Product
    from specdec.heads.logits_map import LogitsMap as LogitsMap
    from specdec.heads.pair_head import PairHead as PairHead
    from specdec.heads.pair_head import fused as fused
    from specdec.heads.strategies.block import DFlashProposer as DFlashProposer
    from specdec.heads.strategies.block import DSparkProposer as DSparkProposer
    from specdec.heads.strategies.eagle import EagleProposer as EagleProposer
    from specdec.heads.strategies.eagle3 import Eagle3Proposer as Eagle3Proposer
    from specdec.heads.strategies.medusa import MedusaProposer as MedusaProposer
    from specdec.heads.strategies.mtp import MtpProposer as MtpProposer
    from specdec.heads.strategies.p_eagle import PEagleProposer as PEagleProposer
    from specdec.heads.torch_runner import TorchRunner as TorchRunner
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
