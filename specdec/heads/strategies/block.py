"""Block drafters as strategies: one pass of a trained head drafts all levels of a tree.

DFlash, arXiv 2602.06036; DSpark, arXiv 2607.05147. ``specdec/heads/block_head.py`` has the head.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from specdec.errors import ModelError
from specdec.heads.block_folder import KEYS, REMEDY, read_block_head
from specdec.heads.block_head import BlockHead
from specdec.heads.files import TargetWeights, check_folder
from specdec.heads.strategies.eagle3 import Eagle3Proposer, HeadFormat
from specdec.strategies.base import Tunable


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

    A head whose layers add nothing sees nothing of the text. With the target's output matrix it predicts the token that
    its slots have for a mask, here a comma:

    >>> import json, tempfile, torch
    >>> from specdec import Generator, demo
    >>> (model, tokenizer), trees = demo.load(), []
    >>> layer = {
    ...     "input_layernorm": (384,), "post_attention_layernorm": (384,), "self_attn.q_proj": (2, 384),
    ...     "self_attn.k_proj": (2, 384), "self_attn.v_proj": (2, 384), "self_attn.o_proj": (384, 2),
    ...     "mlp.gate_proj": (1, 384), "mlp.up_proj": (1, 384), "mlp.down_proj": (384, 1),
    ... }
    >>> tensors = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in layer.items()}
    >>> tensors |= {"fc.weight": torch.zeros(384, 384), "hidden_norm.weight": torch.ones(384)}
    >>> tensors["norm.weight"] = torch.full((384,), 9.0)
    >>> settings = {
    ...     "architectures": ["DFlashDraftModel"], "block_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
    ...     "vocab_size": 2048,
    ...     "dflash_config": {"mask_token_id": tokenizer(",")["input_ids"][-1], "target_layer_ids": [2]},
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(tensors, f"{folder}/pytorch_model.bin")
    ...     with open(f"{folder}/config.json", "w") as file:
    ...         json.dump(settings, file)
    ...     generator = Generator(model, tokenizer, proposer=DFlashProposer(head=folder, top_k=1))
    >>> on_step = lambda record: trees.append(record.outcomes[0].tree)
    >>> chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', ',', ',', ','], [-1, 0, 1, 2])
    >>> generator.close()

    In the first step it has read no hidden states, and drafts nothing.

    Under an acceptance rule that reads q (``rejection``, ``traversal``), candidates are drawn as ``Eagle3Proposer``
    draws them; in a merge, each level continues the most probable path alone. A draft costs one
    pass, whatever its depth. Memory: keys and values of the head's layers for each request.
    """

    name: ClassVar[str] = "dflash"
    _format: ClassVar[HeadFormat] = HeadFormat(
        _read_dflash, partial(check_folder, remedy=REMEDY, strategies={"dflash"}, read=KEYS)
    )
    tunable: ClassVar[Tunable] = {"depth": (3, 5, 7, 15), "num_nodes": (4, 8, 16, 32)}

    head: Path = Field(description="folder of the head")
    top_k: int = Field(default=4, ge=1, description="nodes continued per level, and candidates after each")
    depth: int = Field(default=16, ge=1, description="longest path, if the head's blocks are that long")


class DSparkProposer(DFlashProposer):
    """Drafts with a DSpark head that was trained for this model: DFlash with a Markov head.

    The Markov head changes each position's predictions by the token before, so that a tree's paths differ in their
    candidates. It reads no weights but the vectors of a position's 64 most probable tokens, unless candidates are
    drawn. The confidence head isn't used: how often candidates are accepted is measured. The rest is
    ``DFlashProposer``'s.

    With layers that add nothing, as there, a Markov head that expects ``n`` after a comma has the last word:

    >>> import json, tempfile, torch
    >>> from specdec import Generator, demo
    >>> (model, tokenizer), trees = demo.load(), []
    >>> layer = {
    ...     "input_layernorm": (384,), "post_attention_layernorm": (384,), "self_attn.q_proj": (2, 384),
    ...     "self_attn.k_proj": (2, 384), "self_attn.v_proj": (2, 384), "self_attn.o_proj": (384, 2),
    ...     "mlp.gate_proj": (1, 384), "mlp.up_proj": (1, 384), "mlp.down_proj": (384, 1),
    ... }
    >>> tensors = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in layer.items()}
    >>> tensors |= {"fc.weight": torch.zeros(384, 384), "hidden_norm.weight": torch.ones(384)}
    >>> tensors["norm.weight"] = torch.full((384,), 1.0)
    >>> comma, n = (tokenizer(text)["input_ids"][-1] for text in (",", "n"))
    >>> before, after = torch.zeros(2048, 1), torch.zeros(2048, 1)
    >>> before[comma], after[n] = 1.0, 99.0
    >>> tensors |= {"markov_head.markov_w1.weight": before, "markov_head.markov_w2.weight": after}
    >>> settings = {
    ...     "architectures": ["Qwen3DSparkModel"], "block_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
    ...     "vocab_size": 2048, "mask_token_id": comma, "target_layer_ids": [2], "markov_rank": 1,
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(tensors, f"{folder}/pytorch_model.bin")
    ...     with open(f"{folder}/config.json", "w") as file:
    ...         json.dump(settings, file)
    ...     generator = Generator(model, tokenizer, proposer=DSparkProposer(head=folder, top_k=1, min_probability=0))
    >>> on_step = lambda record: trees.append(record.outcomes[0].tree)
    >>> chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', 'src', ',', 'n', ','], [-1, 0, 1, 2, 3])
    >>> generator.close()
    """

    name: ClassVar[str] = "dspark"
    _format: ClassVar[HeadFormat] = HeadFormat(
        _read_dspark, partial(check_folder, remedy=REMEDY, strategies={"dspark"}, read=KEYS)
    )
