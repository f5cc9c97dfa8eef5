"""P-EAGLE: a trained head of a few layers drafts all tokens of a path in one pass.

"P-EAGLE: Parallel-Drafting EAGLE", arXiv 2602.01469. Paths are ranked by the product of their tokens' probabilities, as
Medusa's are, since no drafted token depends on another.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from specdec.heads.block_head import BlockHead
from specdec.heads.eagle3_folder import REMEDIES, read_p_eagle_head
from specdec.heads.files import check_folder
from specdec.heads.first_pass import first_pass
from specdec.heads.p_eagle import PEagleHead, PEagleRunner
from specdec.heads.pair_head import PairHead
from specdec.heads.precision import AUTO, Precision
from specdec.heads.strategies.candidates import Candidates, DraftNoise
from specdec.heads.strategies.drafter import HeadDrafter, PaysByDrafter
from specdec.heads.strategies.eagle3 import Eagle3Proposer, HeadFormat
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.heads.strategies.levels import Levels
from specdec.strategies.base import Engine
from specdec.strategies.host import Host


class PEagleProposer(Eagle3Proposer):
    """Drafts with a P-EAGLE head that was trained for this model.

    The head reads the hidden states of the accepted tokens as EAGLE-3's does. In the same pass, ``depth - 1`` mask
    tokens after them give the predictions for the positions that follow, each without the tokens drafted before it.

    A head whose layer adds nothing to the hidden states has the target's own prediction, which is the token that the
    text has just got, and the same for all mask tokens, here a comma:

    >>> import json, tempfile, torch
    >>> from specdec import Generator, demo
    >>> (model, tokenizer), trees = demo.load(), []
    >>> layer = {
    ...     "input_layernorm": (384,), "hidden_norm": (384,), "post_attention_layernorm": (384,),
    ...     "self_attn.q_proj": (2, 768), "self_attn.k_proj": (2, 768), "self_attn.v_proj": (2, 768),
    ...     "self_attn.o_proj": (384, 2),
    ...     "mlp.gate_proj": (1, 384), "mlp.up_proj": (1, 384), "mlp.down_proj": (384, 1),
    ... }
    >>> tensors = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in layer.items()}
    >>> tensors["fc.weight"], tensors["norm.weight"] = torch.eye(384, 1152).roll(768, 1), torch.full((384,), 9.0)
    >>> comma = model.get_output_embeddings().weight[tokenizer(",")["input_ids"][-1]]
    >>> tensors["mask_hidden"] = torch.cat((torch.zeros(768), comma.detach())).view(1, 1, -1)
    >>> settings = {
    ...     "speculators_model_type": "peagle", "mask_token_id": 1, "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
    ...     "transformer_layer_config": {"num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 2048},
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(tensors, f"{folder}/pytorch_model.bin")
    ...     with open(f"{folder}/config.json", "w") as file:
    ...         json.dump(settings, file)
    ...     generator = Generator(model, tokenizer, proposer=PEagleProposer(head=folder, top_k=1, depth=3))
    >>> on_step = lambda record: trees.append(record.outcomes[0].tree)
    >>> chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', 'src', ',', ','], [-1, 0, 1, 2])
    >>> generator.close()

    In the first step it has read no hidden states, and drafts nothing. Candidates are chosen under every acceptance
    rule, so they have no q. A draft costs one pass by torch, whatever its depth. Memory: keys and values of the head's
    layers for each request.
    """

    name: ClassVar[str] = "p_eagle"
    _format: ClassVar[HeadFormat] = HeadFormat(
        read_p_eagle_head, partial(check_folder, remedy=REMEDIES["p_eagle"], strategies={"p_eagle"})
    )

    head: Path = Field(description="folder of the head")
    top_k: int = Field(default=4, ge=1, description="candidates of each position; 1 if the target supports no trees")
    depth: int = Field(default=5, ge=1, description="longest path, all of which is drafted in one pass")

    dtype: Precision = Field(default="auto", description=f"the head's precision; {AUTO}")

    def _engine(self, host: Host, head: PairHead | BlockHead, layers: Sequence[int]) -> Engine:
        assert isinstance(head, PEagleHead), "it was read by this strategy"
        top_k = self.top_k if host.takes_trees else 1
        options = TreeOptions(top_k, self.depth, self.num_nodes, self.min_probability)
        runner = PEagleRunner(head, top_k, self.depth)
        return PEagleEngine(options, runner, layers, learns=host.is_keyed, name=self.name)


class PEagleEngine(HeadEngine):
    """The head, which drafts for all requests of a batch in one pass."""

    def __init__(self, options: TreeOptions, runner: PEagleRunner, layers: Sequence[int], **others: Any) -> None:
        super().__init__(options, runner, layers, **others)
        self._depth = runner.depth

    def _trees(
        self,
        depths: Mapping[HeadDrafter, int],
        width: int,
        num_nodes: int,
        pays: PaysByDrafter,
    ) -> Sequence[Candidates]:
        ready = list(depths)
        states, tokens = zip(*map(self._take_unread, ready), strict=True)
        noise = DraftNoise([drafter.request for drafter in ready], self._target_ids).of_next(self._depth)
        caches = [drafter.cache for drafter in ready]
        found, *_ = first_pass(self._runner, caches, states, tokens, noise, self._depth - 1)
        levels = zip(found.tokens.tolist(), found.log_probs.tolist(), strict=True)
        return [Levels(*each).candidates(num_nodes, depth) for each, depth in zip(levels, depths.values(), strict=True)]
