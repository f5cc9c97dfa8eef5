"""EAGLE-3: a trained head of one layer drafts from the target's hidden states.

Li et al. 2025, "EAGLE-3", arXiv 2503.01840; its draft trees are those of EAGLE-2, Li et al. 2024, arXiv 2406.16858,
section 4. ``specdec/heads/`` has the head itself, its folders and its trees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from specdec.errors import ModelError
from specdec.heads.base import HeadRunners
from specdec.heads.block_head import BlockHead
from specdec.heads.eagle3_folder import REMEDIES, read_head
from specdec.heads.files import TargetWeights, check_folder
from specdec.heads.graph_runner import runner_by_torch
from specdec.heads.local_heads import head_of
from specdec.heads.pair_head import PairHead
from specdec.heads.precision import AUTO, Precision, dtype_of
from specdec.heads.settings import notes_on_settings
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.heads.strategies.sampled_candidates import DrawingEngine
from specdec.heads.strategies.target_weights import check_ids, notes_on_target, shared_weights
from specdec.strategies.base import Engine, Proposer, Tunable
from specdec.strategies.host import Host


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """A kind of head's files.

    Attributes:
        read: returns the head in a folder, for a target's weights, in a dtype; raises ModelError.
        check: called before a model is loaded; raises ModelError for a folder without the files that a head has.
    """

    read: Callable[[Path, TargetWeights, torch.dtype], PairHead | BlockHead]
    check: Callable[[Path], object]


class Eagle3Proposer(Proposer):
    """Drafts with an EAGLE-3 head that was trained for this model.

    In each step the head reads the hidden states of the accepted tokens and predicts the next one. The ``top_k`` most
    probable tokens are fed to the head again, level by level up to ``depth``, and the ``num_nodes`` most probable paths
    form the draft.

    >>> from specdec import Generator, demo
    >>> head = Eagle3Proposer(head=demo.head_folder(), top_k=2, depth=3, num_nodes=4)
    >>> (model, tokenizer), trees = demo.load(), []
    >>> with Generator(model, tokenizer, proposer=head) as generator:
    ...     on_step = lambda record: trees.append(record.outcomes[0].tree)
    ...     chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', ',', 'n', 'ode', '):'], [-1, 0, 1, 2, 2])

    After ``class Counter(src`` the head expects a comma with probability 0.97, ``n`` after the comma with 0.77, and
    then ``ode`` with 0.28 or ``):`` with 0.13. In the first step it has read no hidden states, and drafts nothing.

    Candidates are chosen, so they have no q. At a temperature above 0 this differs by the acceptance rule: under
    ``match`` the head is given the noise of each position, as draft models are. Under a rule that reads q
    (``rejection``, ``traversal``) one candidate after each node is drawn from the head's distribution, warped as the
    target's is, and the most probable others follow it. In a merge, candidates are chosen under every rule, and each
    level feeds only the most probable path.

    Each level costs a pass of the head. Memory: keys and values of one layer for each request.
    """

    name: ClassVar[str] = "eagle3"
    _format: ClassVar[HeadFormat] = HeadFormat(
        read_head, partial(check_folder, remedy=REMEDIES["eagle3"], strategies={"eagle3"})
    )
    tunable: ClassVar[Tunable] = {"depth": (1, 2, 3, 4, 5, 7), "num_nodes": (4, 8, 16, 32)}

    head: Path | None = Field(
        default=None, description="folder of the head; by default the one that `specdec train head` made for this model"
    )
    top_k: int = Field(default=4, ge=1, description="nodes fed per level, and candidates after each")
    depth: int = Field(default=5, ge=1, description="longest path, and so passes of the head per step")
    num_nodes: int = Field(default=16, ge=1, description="nodes of a draft at most, the most probable paths")
    min_probability: float = Field(default=0.02, ge=0.0, le=1.0, description="least probability of a path, by the head")

    dtype: Precision = Field(
        default="auto",
        description=f"the head's precision; {AUTO}, and matrices in 8 bits on OpenVINO",
    )

    def check_files(self) -> None:
        if self.head is not None:
            self._format.check(self.head.expanduser())

    def bind(self, host: Host) -> Engine:
        folder = _local_head(host) if self.head is None else self.head.expanduser()
        weights = shared_weights(host, f"the head in {folder} reads")
        head = self._format.read(folder, weights, dtype_of(self.dtype, weights.embeddings))
        remedy = "give the folder of a head that was trained for this model"
        check_ids(head.target_ids, host, f"the head in {folder} drafts", remedy)
        engine = self._engine(host, head, head.config.target_layers(weights.num_layers))
        if self.head is not None:  # those made here were trained for this very model
            engine.notes = notes_on_settings(folder) + notes_on_target(host.model)
        return engine

    def _engine(self, host: Host, head: PairHead | BlockHead, layers: Sequence[int]) -> Engine:
        # A tree that is cut to a chain would lose its true q.
        top_k = self.top_k if host.takes_trees or not host.reads_q else 1
        depth = min(self.depth, head.config.num_drafted) if isinstance(head, BlockHead) else self.depth
        options = TreeOptions(top_k, depth, self.num_nodes, self.min_probability)
        own, num_tokens = host.extension(HeadRunners), None if host.reads_q else top_k
        may_quantize = self.dtype == "auto"
        runner = own.runner(head, num_tokens, may_quantize) if own is not None else runner_by_torch(head, num_tokens)
        engine = DrawingEngine if host.reads_q else HeadEngine
        return engine(options, runner, layers, learns=host.is_keyed, name=self.name)


def _local_head(host: Host) -> Path:
    """Return the folder of the head that was trained on this machine for the target.

    Raises:
        ModelError: there is none.
    """
    folder = head_of(host.model)
    if folder is None:
        raise ModelError(
            "no head was trained for this model on this machine: give head=FOLDER, or run `specdec train head --model "
            "MODEL`"
        )
    return folder
