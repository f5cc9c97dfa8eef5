"""Does a block drafter learn more than an EAGLE-3 head in the same time?

A small DSpark drafter (two layers, blocks of seven tokens, a Markov head of rank 64) is trained on the text that
``specdec train head`` wrote for EAGLE-3's head, and both draft trees of the same size for prompts that neither has
seen. Tokens and steps are counted; only training is timed.

Training follows DSpark (arXiv 2607.05147, section 3): blocks begin at random tokens of answers; a slot's loss is 0.1 of
the cross-entropy and 0.9 of the distance ‖q - p‖₁ to the target's distribution, with weight exp(-k / 4).
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.training.head_acceptance import Decoding
from specdec.heads.base import KeyValues
from specdec.heads.block_head import BlockHead
from specdec.heads.config import BlockConfig
from specdec.heads.layers import LayerInputs
from specdec.heads.strategies.block import DFlashProposer, DSparkProposer
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.heads.training.eagle3_training import eagle3_config
from specdec.heads.training.head_training import draft_vocabulary
from specdec.heads.training.kept_states import KeptStates
from specdec.heads.training.least_squares_start import state_scales
from specdec.heads.training.loop import ScheduledAdamW
from specdec.heads.training.packing import PackedRows, pack
from specdec.heads.training.settings import TrainingSettings
from specdec.heads.training.target import States, TargetStates
from specdec.heads.training.text import TrainingText
from specdec.models.loading import load_pretrained
from specdec.strategies.base import Proposer

RATES = {"norm": 1e-3, "mlp": 5e-4, "o_proj": 4e-4, "_proj": 2.5e-4, "fc": 1e-4, "markov": 1e-3}  # first in a name
DECAY = 4.0
CROSS_ENTROPY = 0.1  # of the loss; the rest is the distance
MASK = 0  # a token that texts hardly have: its embedding isn't trained


class Blocks:
    """Blocks of some rows: the inputs of their slots and what these are to predict.

    Args:
        rows: packed rows on the device.
        anchors: (rows, blocks) places of the blocks' first tokens.
        size: slots of a block.

    Attributes:
        tokens, positions: (rows, slots of all blocks).
        labels: (rows, slots) places of the tokens to predict.
        is_valid: (rows, slots) True up to the first place outside of the answer.
    """

    def __init__(self, rows: PackedRows, anchors: torch.Tensor, size: int) -> None:
        length, depths = rows.tokens.shape[1], torch.arange(size, device=anchors.device)
        places = anchors[..., None] + 1 + depths
        self.labels = places.clamp(max=length - 1).flatten(1)
        of_block = anchors[..., None].expand(-1, -1, size).flatten(1)
        documents = rows.documents.gather(1, self.labels) == rows.documents.gather(1, of_block)
        answers = rows.is_answer.gather(1, self.labels) & (places.flatten(1) < length)
        inside = (documents & answers).view(len(rows), -1, size).int().cumprod(-1).bool()
        self.is_valid = (inside & (rows.positions.gather(1, anchors) > 0)[..., None]).flatten(1)
        tokens = torch.full(places.shape, MASK, device=anchors.device)
        tokens[..., 0] = rows.tokens.gather(1, anchors)
        self.tokens = tokens.flatten(1)
        self.positions = (rows.positions.gather(1, anchors)[..., None] + depths).flatten(1)
        same_document = rows.documents.gather(1, of_block)[..., None] == rows.documents[:, None]
        context = same_document & (torch.arange(length, device=anchors.device) < of_block[..., None])
        block = torch.arange(of_block.shape[1], device=anchors.device) // size
        own = (block[:, None] == block).expand(len(anchors), -1, -1)
        self.visible = torch.cat((context, own), -1)


def anchors_of(rows: PackedRows, count: int, generator: torch.Generator) -> torch.Tensor:
    """Random places, (rows, count), whose next token is of an answer; others if there are too few."""
    follows = rows.is_answer.roll(-1, 1) & (rows.documents.roll(-1, 1) == rows.documents) & (rows.positions > 0)
    follows[:, -1] = False
    drawn = torch.rand(follows.shape, generator=generator) + follows
    return drawn.topk(count, 1).indices.sort(1).values


def final_states(head: BlockHead, read: torch.Tensor, rows: PackedRows, blocks: Blocks) -> torch.Tensor:
    """The drafter's final states of all slots, (rows, slots, hidden), behind the target's states that it reads."""
    context = head.context(read, rows.positions)

    def attend(number: int, inputs: LayerInputs) -> torch.Tensor:
        own = head.layer_of(context, number).followed_by(KeyValues(inputs.key, inputs.value))
        return scaled_dot_product_attention(inputs.query, *own, blocks.visible[:, None], enable_gqa=True)

    final: torch.Tensor = head(blocks.tokens, blocks.positions, attend)
    return final


def logits_of(head: BlockHead, final: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Logits over the draft vocabulary, (n, draft vocab), of slots (n, hidden) after tokens (n,)."""
    if head.markov_head is None:
        return head.logits(final)
    vectors, _ = head.markov_head(before[None], final[None], final.new_zeros(1, 1, 1))
    return head.logits(final) + head.markov_head.markov_w2(vectors[0]).float()


def loss_of(
    head: BlockHead, states: States, scales: torch.Tensor, rows: PackedRows, blocks: Blocks, output_rows: torch.Tensor
) -> torch.Tensor:
    """The weighted mean of the valid slots' losses."""
    final = final_states(head, states.layers * scales, rows, blocks)
    row, slot = blocks.is_valid.nonzero(as_tuple=True)
    places = blocks.labels[row, slot]
    logits = logits_of(head, final[row, slot], rows.tokens[row, places - 1])
    teacher = linear(states.final[row, places - 1], output_rows).float().softmax(-1)
    weights = torch.exp(-(slot % head.config.block_size) / DECAY)
    ids = torch.searchsorted(head.target_ids, rows.tokens[row, places]).clamp(max=len(output_rows) - 1)
    is_known = head.target_ids[ids] == rows.tokens[row, places]
    entropy = cross_entropy(logits, ids, reduction="none") * is_known
    distance = (logits.softmax(-1) - teacher).abs().sum(-1)
    return ((CROSS_ENTROPY * entropy + (1 - CROSS_ENTROPY) * distance) * weights).sum() / weights.sum()


def untrained(model: Any, vocabulary: torch.Tensor, arguments: argparse.Namespace) -> tuple[BlockHead, torch.Tensor]:
    """A drafter whose layers have no effect yet, and the target's output matrix at the draft vocabulary."""
    own = eagle3_config(model, len(vocabulary))
    sizes = own.model_dump(exclude={"num_states", "layer_ids", "norm_before_residual", "norm_before_fc", "fc_norm"})
    del sizes["norm_output"]
    layers = own.target_layers(model.config.get_text_config().num_hidden_layers)
    config = BlockConfig(
        **sizes | {"qk_norm": True},
        layer_ids=layers,
        num_layers=arguments.layers,
        block_size=arguments.block,
        mask_token_id=MASK,
        predicts_next=True,
        is_causal=(False,) * arguments.layers,
        windows=(None,) * arguments.layers,
        markov="vanilla" if arguments.rank else None,
        markov_rank=arguments.rank,
    )
    output_rows = model.get_output_embeddings().weight.detach()[vocabulary].float()
    embeddings = model.get_input_embeddings().weight.float()
    head = BlockHead(config, embeddings, output_rows, dtype=torch.float32)
    head.d2t.copy_(vocabulary - torch.arange(len(vocabulary)))
    torch.manual_seed(arguments.seed)
    for name, parameter in head.named_parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(std=0.8 / math.sqrt(parameter.shape[1]))
        if name.endswith(("o_proj.weight", "down_proj.weight", "markov_w2.weight")):
            parameter.data.zero_()
    norm = getattr(getattr(model.get_decoder(), "norm", None), "weight", None)
    if norm is not None:
        head.norm.weight.data.copy_(norm.detach())
    return head.train(), output_rows


def groups(head: BlockHead, rate: float) -> list[tuple[list[torch.nn.Parameter], float]]:
    """The parameters with their peak rates."""
    found: dict[str, list[torch.nn.Parameter]] = {name: [] for name in RATES}
    for name, parameter in head.named_parameters():
        found[next(part for part in RATES if part in name)].append(parameter)
    return [(each, rate * RATES[part]) for part, each in found.items() if each]


def batches(rows: PackedRows, size: int) -> Iterator[PackedRows]:
    while True:
        for start in range(0, len(rows) - size + 1, size):
            yield rows[start : start + size]


def train(model: Any, text: TrainingText, arguments: argparse.Namespace) -> tuple[BlockHead, dict[str, Any]]:
    """Train for the given minutes; return the drafter, which reads states as they are, and what was done."""
    vocabulary = draft_vocabulary(text, len(model.get_input_embeddings().weight), arguments.vocabulary)
    head, output_rows = untrained(model, vocabulary, arguments)
    target = KeptStates(TargetStates(model, head.config.layer_ids))
    rows = pack(text, arguments.length, np.random.default_rng(arguments.seed))
    generator = torch.Generator().manual_seed(arguments.seed)
    scales = state_scales(target.of(rows[: min(8, len(rows))]).layers.flatten(0, 1).float())
    schedule = TrainingSettings(rate=arguments.rate)
    optimizer = ScheduledAdamW(groups(head, arguments.rate), schedule)
    began, seconds, num_answer_tokens, losses = time.perf_counter(), 60 * arguments.minutes, 0, list[float]()
    for update, batch in enumerate(batches(rows, arguments.rows)):
        done = (time.perf_counter() - began) / seconds
        if done >= 1:
            break
        states = target.of(batch)
        states = States(states.layers.float(), states.final.float())
        blocks = Blocks(batch, anchors_of(batch, arguments.anchors, generator), arguments.block)
        loss = loss_of(head, states, scales, batch, blocks, output_rows)
        optimizer.step(loss, update, done)
        losses.append(loss.item())
        num_answer_tokens += batch.num_answer_tokens
        if update % 50 == 0:
            print(
                f"{update} updates, {num_answer_tokens:,} answer tokens, loss {np.mean(losses[-50:]):.3f}", flush=True
            )
    head.fc.weight.data.mul_(scales)
    found = {
        "minutes": arguments.minutes,
        "updates": len(losses),
        "answer tokens": num_answer_tokens,
        "loss at first": losses[0],
        "loss at the end": float(np.mean(losses[-50:])),
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
    }
    return head.eval(), found


def write(head: BlockHead, folder: Path) -> None:
    """Write a drafter in ``speculators``' layout, which ``dspark`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    tensors = {name: tensor.detach().contiguous() for name, tensor in head.state_dict().items()}
    tensors["lm_head.weight"] = head.output.contiguous()
    layer = {
        "model_type": "qwen3", "num_hidden_layers": config.num_layers, "hidden_act": "silu",
        **config.model_dump(
            include={
                "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                "vocab_size", "rms_norm_eps", "rope_parameters", "max_position_embeddings",
            }
        ),
    }  # fmt: skip
    settings = {
        "speculators_model_type": "dspark" if config.markov else "dflash", "block_size": config.block_size,
        "mask_token_id": config.mask_token_id, "aux_hidden_state_layer_ids": list(config.layer_ids),
        "draft_vocab_size": config.draft_vocab_size, "sample_from_anchor": True, "markov_rank": config.markov_rank,
        "markov_head_type": config.markov, "transformer_layer_config": layer,
    }  # fmt: skip
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    arguments = parsed()
    model, tokenizer = load_pretrained(arguments.model, dtype=arguments.dtype)
    head, found = train(model, TrainingText.load(arguments.text), arguments)
    write(head, arguments.out)
    prompts = encoded_prompts(arguments, tokenizer)
    decoding = Decoding(model, tokenizer, prompts, arguments.max_new_tokens)
    plain = decoding.texts("autoregressive")
    trees: dict[str, Any] = {"num_nodes": arguments.nodes, "min_probability": 0.0}
    block = DSparkProposer if arguments.rank else DFlashProposer
    drafters: dict[str, Proposer] = {"block drafter": block(head=arguments.out, **trees)}
    if arguments.head is not None:
        drafters["EAGLE-3"] = Eagle3Proposer(head=arguments.head, **trees)
    found |= {name: decoding.tokens_per_step(drafter, plain) for name, drafter in drafters.items()}
    print(json.dumps(found, indent=1))
    (arguments.out / "measured.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks block_drafter", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="the target: a folder, a hub name, demo or smollm2")
    parser.add_argument("--text", type=Path, required=True, help="text.npz of a folder of `specdec train head`")
    parser.add_argument("--out", type=Path, required=True, help="folder for the drafter and the figures")
    parser.add_argument("--head", type=Path, help="folder of an EAGLE-3 head to compare with")
    parser.add_argument("--dtype", default="float32", help="of the target")
    parser.add_argument("--minutes", type=float, default=30.0, help="of training")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--block", type=int, default=7)
    parser.add_argument("--rank", type=int, default=64, help="of the Markov head; 0 for none (DFlash)")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--anchors", type=int, default=64, help="blocks of a row")
    parser.add_argument("--rows", type=int, default=2, help="rows of an update")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--rate", type=float, default=2.0, help="factor on the learning rates")
    parser.add_argument("--nodes", type=int, default=8, help="of the drafts that are compared")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    add_prompt_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
