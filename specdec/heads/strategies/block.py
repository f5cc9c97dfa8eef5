"""Block drafters as strategies: one pass of a trained head drafts all levels of a tree.

DFlash, arXiv 2602.06036; DSpark, arXiv 2607.05147. ``specdec/heads/block_head.py`` has the head.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from specdec.errors import ModelError
from specdec.heads.block_folder import KEYS, REMEDY, read_block_head
from specdec.heads.block_head import BlockHead
from specdec.heads.block_runner import BlockRunner
from specdec.heads.files import TargetWeights, check_folder
from specdec.heads.pair_head import PairHead
from specdec.heads.precision import AUTO, Precision
from specdec.heads.strategies.eagle3 import Eagle3Proposer, HeadFormat
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.heads.strategies.sampled_candidates import DrawingEngine
from specdec.strategies.base import Engine, Tunable
from specdec.strategies.host import Host


def _read_dflash(folder: Path, target: TargetWeights, dtype: torch.dtype) -> BlockHead:
    head = read_block_head(folder, target, dtype)
    if head.markov_head is not None:
        raise ModelError(f"{folder} holds a DSpark head: draft with dspark:head={folder}")
    return head


def _read_dspark(folder: Path, target: TargetWeights, dtype: torch.dtype) -> BlockHead:
    head = read_block_head(folder, target, dtype)
    if head.markov_head is None:
        raise ModelError(f"{folder} holds a drafter without a Markov head: draft with dflash:head={folder}")
    return head


class DFlashProposer(Eagle3Proposer):
    """Drafts with a DFlash head that was trained for this model, in one pass for all positions of a block.

    Folders of z-lab, DeepSpec and ``speculators`` are read. The head reads the hidden states of the accepted tokens,
    and predicts each of the next positions without the tokens drafted before it. So all paths of a tree share the
    candidates of a position, and the ``num_nodes`` most probable paths form the draft.

    A head whose layers add nothing sees the last token and mask tokens, and nothing of the text: with the target's own
    output matrix it drafts what resembles them.

    Under an acceptance rule that reads q (``rejection``, ``traversal``), candidates are drawn as ``Eagle3Proposer``
    draws them; in a merge, each level continues the most probable path alone. A draft costs one pass by torch, whatever
    its depth. Memory: keys and values of the head's layers for each request.
    """

    name: ClassVar[str] = "dflash"
    _format: ClassVar[HeadFormat] = HeadFormat(
        _read_dflash, partial(check_folder, remedy=REMEDY, strategies={"dflash"}, read=KEYS)
    )
    tunable: ClassVar[Tunable] = {"depth": (3, 5, 7, 15), "num_nodes": (4, 8, 16, 32)}

    head: Path = Field(description="folder of the head")
    top_k: int = Field(default=4, ge=1, description="nodes continued per level, and candidates after each")
    depth: int = Field(default=16, ge=1, description="longest path, if the head's blocks are that long")

    dtype: Precision = Field(default="auto", description=f"the head's precision; {AUTO}")

    def _engine(self, host: Host, head: PairHead | BlockHead, layers: Sequence[int]) -> Engine:
        assert isinstance(head, BlockHead), "it was read by this strategy"
        # A tree that is cut to a chain would lose its true q.
        top_k = self.top_k if host.takes_trees or not host.reads_q else 1
        runner = BlockRunner(head, None if host.reads_q else top_k)
        depth = min(self.depth, runner.num_drafted)
        options = TreeOptions(top_k, depth, self.num_nodes, self.min_probability)
        engine = DrawingEngine if host.reads_q else HeadEngine
        return engine(options, runner, layers, learns=host.is_keyed, name=self.name)


class DSparkProposer(DFlashProposer):
    """Drafts with a DSpark head that was trained for this model: DFlash with a Markov head.

    The Markov head changes each position's predictions by the token before, so that a tree's paths differ in their
    candidates. It reads no weights but the few vectors of the candidates. The confidence head isn't used: how often
    candidates are accepted is measured. See ``DFlashProposer``.
    """

    name: ClassVar[str] = "dspark"
    _format: ClassVar[HeadFormat] = HeadFormat(
        _read_dspark, partial(check_folder, remedy=REMEDY, strategies={"dspark"}, read=KEYS)
    )
