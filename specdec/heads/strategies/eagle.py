"""EAGLE: a trained head of one layer predicts the target's next hidden states, and drafts from them.

Li et al. 2024, "EAGLE", arXiv 2401.15077, section 3; its draft trees are those of EAGLE-2, arXiv 2406.16858, section 4,
which has the same heads.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from specdec.heads.eagle import REMEDY, read_eagle_head
from specdec.heads.files import check_folder
from specdec.heads.strategies.eagle3 import Eagle3Proposer, HeadFormat


class EagleProposer(Eagle3Proposer):
    """Drafts with a head of EAGLE or EAGLE-2 that was trained for this model.

    It drafts as ``eagle3`` does, but reads the last hidden states alone, and scores the whole vocabulary with the
    target's output matrix.

    A head whose layer adds nothing to the hidden states has the target's own prediction, which is the token that the
    text has just got:

    >>> import json, tempfile, torch
    >>> from specdec import Generator, demo
    >>> (model, tokenizer), trees = demo.load(), []
    >>> layer = {
    ...     "self_attn.q_proj": (2, 384), "self_attn.k_proj": (2, 384), "self_attn.v_proj": (2, 384),
    ...     "self_attn.o_proj": (384, 2), "post_attention_layernorm": (384,),
    ...     "mlp.gate_proj": (1, 384), "mlp.up_proj": (1, 384), "mlp.down_proj": (384, 1),
    ... }
    >>> tensors = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in layer.items()}
    >>> tensors["fc.weight"] = torch.eye(384, 768).roll(384, 1)  # of the embedding and the hidden state, the latter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(tensors, f"{folder}/pytorch_model.bin")
    ...     with open(f"{folder}/config.json", "w") as file:
    ...         json.dump({"num_attention_heads": 1, "vocab_size": 2048}, file)
    ...     generator = Generator(model, tokenizer, proposer=EagleProposer(head=folder, top_k=1, depth=3))
    >>> on_step = lambda record: trees.append(record.outcomes[0].tree)
    >>> chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', 'src', 'src', 'src'], [-1, 0, 1, 2])
    >>> generator.close()

    In the first step it has read no hidden states, and drafts nothing. The output matrix is held a second time.
    """

    name: ClassVar[str] = "eagle"
    _format: ClassVar[HeadFormat] = HeadFormat(
        read_eagle_head, partial(check_folder, remedy=REMEDY, strategies={"eagle"}, has_norms=False)
    )

    head: Path = Field(description="folder of the head")
