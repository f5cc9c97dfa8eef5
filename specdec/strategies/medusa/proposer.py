"""Medusa: trained heads predict several next tokens at once from the target's last hidden state.

Cai et al. 2024, "Medusa", arXiv 2401.10774, sections 2.1 and 2.2. ``specdec/heads/`` has the heads and their folders.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from specdec.heads.medusa import MedusaRunner
from specdec.heads.medusa_folder import check_medusa_heads, read_medusa_heads
from specdec.heads.precision import AUTO, Precision, dtype_of
from specdec.heads.settings import notes_on_settings
from specdec.strategies.base import Engine, Proposer, Tunable
from specdec.strategies.host import Host
from specdec.strategies.medusa.engine import MedusaEngine, MedusaOptions
from specdec.strategies.trained_heads.target_weights import check_ids, notes_on_target, shared_weights


class MedusaProposer(Proposer):
    """Drafts with Medusa's heads that were trained for this model.

    In each step all heads read the hidden state at the last accepted token, in one pass. Head k predicts the token at
    depth k + 1. The ``num_nodes`` paths with the largest product of the heads' probabilities form the draft, in place
    of the paper's fixed tree.

    Heads whose blocks are zero have the target's own prediction, which is the token that the text has just got:

    >>> import tempfile, torch
    >>> from specdec import Generator, demo
    >>> (model, tokenizer), trees = demo.load(), []
    >>> untrained = {f"{head}.0.linear.weight": torch.zeros(384, 384) for head in range(2)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(untrained, f"{folder}/medusa_lm_head.pt")
    ...     generator = Generator(model, tokenizer, proposer=MedusaProposer(head=folder, num_nodes=2))
    >>> on_step = lambda record: trees.append(record.outcomes[0].tree)
    >>> chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', 'src', 'src'], [-1, 0, 1])
    >>> generator.close()

    With more nodes, the heads' second candidates follow as branches.

    In the first step no hidden state has been read, and nothing is drafted.

    Candidates are chosen, not drawn, so they have no q. Under ``match`` and at a temperature above 0 the heads are
    given the noise of each position, as draft models are. In a merge, the heads also propose after paths of other
    sources, since they predict each depth whatever comes before it.

    A step costs one pass of all heads. Memory: one hidden state for each request.
    """

    tunable: ClassVar[Tunable] = {"num_nodes": (4, 8, 16, 32, 63)}

    head: Path = Field(description="folder of the heads")
    top_k: int = Field(default=10, ge=1, description="candidates of each head")
    num_nodes: int = Field(default=16, ge=1, description="nodes of a draft at most, the most probable paths")
    min_probability: float = Field(
        default=0.02, ge=0.0, le=1.0, description="least probability of a path, by the heads"
    )
    dtype: Precision = Field(default="auto", description=f"the heads' precision; {AUTO}")

    def check_files(self) -> None:
        check_medusa_heads(self.head.expanduser())

    def bind(self, host: Host) -> Engine:
        folder = self.head.expanduser()
        weights = shared_weights(host, f"the Medusa heads in {folder} read")
        heads = read_medusa_heads(folder, weights, dtype_of(self.dtype, weights.embeddings))
        remedy = "give the folder of heads that were trained for this model"
        check_ids(heads.target_ids, host, f"the Medusa heads in {folder} draft", remedy)
        options = MedusaOptions(self.num_nodes, self.min_probability)
        engine = MedusaEngine(options, MedusaRunner(heads, self.top_k), weights.num_layers, learns=host.is_keyed)
        engine.notes = notes_on_settings(folder) + notes_on_target(host.model)
        return engine
