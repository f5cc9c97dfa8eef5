"""Multi-token prediction: the module that a checkpoint has for it drafts from the target's last hidden state.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2; the draft trees are EAGLE-2's, Li et
al. 2024, arXiv 2406.16858, section 4. ``specdec/heads/mtp.py`` has the module itself.
"""

from typing import ClassVar

from pydantic import Field

from specdec.heads.logits_map import logits_map_of
from specdec.heads.mtp import MtpRunner
from specdec.heads.mtp_checkpoint import read_mtp
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.heads.strategies.target_weights import notes_on_target, shared_weights
from specdec.strategies.base import Engine, Proposer, Tunable
from specdec.strategies.host import Host


class MtpProposer(Proposer):
    """Drafts with the multi-token-prediction module in the target's own checkpoint; there is nothing to train.

    Checkpoints of DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5 and MiMo have one; transformers leaves it out when it loads
    them. In each step the module reads the last hidden states of the accepted tokens and predicts the next one. Further
    tokens are predicted from the module's own output, level by level as in ``Eagle3Proposer``: it was trained for one
    token, so each further one is accepted less often. Of several modules the first is used.

    A module whose layer adds nothing to the hidden states has the target's own prediction, which is the last
    token of the text. This example adds one to the built-in model's weights, in MiMo's layout:

    >>> import tempfile, torch
    >>> from safetensors.torch import load_file, save_file
    >>> from specdec import Generator, demo
    >>> (model, tokenizer), folder, trees = demo.load(), tempfile.TemporaryDirectory(), []
    >>> model.save_pretrained(folder.name)
    >>> tensors, path = load_file(f"{folder.name}/model.safetensors"), f"{folder.name}/model.safetensors"
    >>> for name in [name for name in tensors if name.startswith("model.layers.0.")]:
    ...     tensors[name.replace("layers.0", "mtp_layers.0")] = torch.zeros_like(tensors[name])
    >>> for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
    ...     tensors[f"model.mtp_layers.0.{name}.weight"] = torch.ones(384)
    >>> tensors["model.mtp_layers.0.input_proj.weight"] = torch.eye(384, 768)  # the hidden state's half
    >>> save_file(tensors, path, metadata={"format": "pt"})
    >>> generator = Generator(folder.name, tokenizer, proposer=MtpProposer(top_k=1, min_probability=0))
    >>> on_step = lambda record: trees.append(record.outcomes[0].tree)
    >>> chunks = list(generator.stream("class Counter", max_new_tokens=8, on_step=on_step))
    >>> [tokenizer.decode([token]) for token in trees[2].tokens], trees[2].parents
    (['src', 'src', 'src', 'src'], [-1, 0, 1, 2])
    >>> generator.close()
    >>> folder.cleanup()

    In the first step it has read no hidden states, and drafts nothing.

    Candidates are chosen, not drawn, so they have no q. Under ``match`` and at a temperature above 0 the module is
    given the noise of each position. In a merge, each level feeds only the most probable path.

    Each level costs a pass of the module by torch: one of the target's layers and its output matrix. Memory: the
    module, a copy of the output matrix, and keys and values of one layer for each request.
    """

    tunable: ClassVar[Tunable] = {"depth": (1, 2, 3, 4), "num_nodes": (2, 4, 8, 16)}

    top_k: int = Field(
        default=4, ge=1, description="nodes fed per level, and candidates after each; 1 if the target supports no trees"
    )
    depth: int = Field(default=3, ge=1, description="longest path, and so passes of the module per step")
    num_nodes: int = Field(default=8, ge=1, description="nodes of a draft at most, the most probable paths")
    min_probability: float = Field(default=0.02, ge=0.0, le=1.0, description="least probability of a path")

    def bind(self, host: Host) -> Engine:
        embeddings = shared_weights(host, "multi-token-prediction modules read").embeddings
        lm_head = host.output_rows(range(min(host.vocab_size, len(embeddings))))
        head = read_mtp(host.model, embeddings, lm_head, embeddings.dtype)
        head.logits_map = logits_map_of(host.model).of_tokens(head.target_ids)
        top_k = self.top_k if host.takes_trees else 1
        options = TreeOptions(top_k, self.depth, self.num_nodes, self.min_probability)
        engine = HeadEngine(options, MtpRunner(head, top_k), (-1,), learns=host.is_keyed, name="mtp")
        engine.notes = notes_on_target(host.model)
        return engine
