"""The share of a step that a trained head takes, at the shapes of larger models.

    python -m benchmarks head_share --shape 0.3b --backend openvino --dtype bfloat16

Model and head are random, since only times matter: a Llama of the shape with 49,152 tokens, and an EAGLE-3 head of its
width and layer with 8,192 draft entries. Plain decoding and drafts of 1 and of 4 levels take turns: rounds of a few
steps each, of which the phases are taken from the steps' records. A draft's first pass reads the accepted tokens and
drafts the first level; each further one feeds four nodes. Figures are medians.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import facts
from benchmarks.models import description
from benchmarks.widening import SHAPES
from specdec import Generator
from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_folder import write_head
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.record import StepRecord

SMALL = {"hidden_size": 64, "num_layers": 6, "num_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
VOCABULARY, DRAFT_VOCABULARY = 49152, 8192
NUM_NODES, DEPTH = 8, 4


def random_model(shape: dict[str, int], dtype: str) -> LlamaForCausalLM:
    """Return a Llama of a shape of ``SHAPES``; its output matrix is that of the embeddings."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape["hidden_size"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_key_value_heads"],
        intermediate_size=shape["intermediate_size"],
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM._from_config(config, dtype=getattr(torch, dtype)).eval()


def write_random_head(model: LlamaForCausalLM, folder: Path) -> int:
    """Write an EAGLE-3 head of a model's width; return the number of its parameters."""
    config = model.config
    sizes = Eagle3Config(
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        draft_vocab_size=DRAFT_VOCABULARY,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        head = Eagle3Head(sizes, model.get_input_embeddings().weight)
    write_head(head, folder, config.num_hidden_layers)
    return sum(parameter.numel() for parameter in head.parameters())


class Phases:
    """The seconds of a strategy's steps, by phase."""

    def __init__(self, proposer: Any) -> None:
        self.proposer = proposer
        self._records = list[StepRecord]()

    def run(self, generator: Generator, prompt: list[int], num_steps: int, is_warming_up: bool) -> None:
        """Decode a short text; the records of its steps are kept unless the round only warms up."""
        records = list[StepRecord]()
        generator.generate(
            prompt, proposer=self.proposer, max_new_tokens=num_steps, eos_token_id=(), on_step=records.append
        )
        if not is_warming_up:
            self._records += [record for record in records if record.kind == "step" and record.is_warm][2:]

    def median(self, *phases: str) -> float:
        """Return the median of a step's milliseconds in some phases, all by default."""
        return 1000 * statistics.median(
            sum(record.seconds.get(phase, 0.0) for phase in phases or record.seconds) for record in self._records
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["small", *SHAPES], default="0.3b")
    parser.add_argument("--backend", choices=["hf", "openvino"], default="hf")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--num-steps", type=int, default=12, help="of a text, the first few of which aren't counted")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = random_model({"small": SMALL, **SHAPES}[arguments.shape], arguments.dtype)
    with tempfile.TemporaryDirectory() as folder:
        size = write_random_head(model, Path(folder))
        options = {"head": Path(folder), "top_k": 4, "num_nodes": NUM_NODES, "min_probability": 0.0}
        proposers = ["autoregressive", *(Eagle3Proposer(depth=depth, **options) for depth in (1, DEPTH))]
        plain, first, whole = strategies = [Phases(proposer) for proposer in proposers]
        print(facts())
        print(f"{description(model)}; a head of {size / 1e6:.0f} million parameters; {arguments.backend}")
        with Generator(model, proposer="autoregressive", numerics="fast", backend=arguments.backend) as generator:
            for number in range(arguments.rounds + 2):  # two warm up
                for strategy in strategies:
                    strategy.run(generator, [*range(5, 105)], arguments.num_steps, is_warming_up=number < 2)
    step, draft, of_first = plain.median(), whole.median("propose"), first.median("propose")
    print("| plain step, ms | step of 9 nodes without the draft | first pass | next pass | draft | share of the step |")
    print("|---|---|---|---|---|---|")
    figures = step, whole.median() - draft, of_first, (draft - of_first) / (DEPTH - 1), draft
    print(f"| {' | '.join(f'{each:.2f}' for each in figures)} | {draft / whole.median():.0%} |", flush=True)


if __name__ == "__main__":
    main()
