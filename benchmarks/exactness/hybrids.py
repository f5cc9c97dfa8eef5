"""Recurrent and hybrid models: is each strategy's text that of transformers, and how much do drafts save?

    python -m benchmarks hybrids [--families lfm2 qwen3_next …] [--num-texts 40] [--max-new-tokens 64]
    python -m benchmarks hybrids --speed [--models Qwen3 Bamba …] [--num-rows 8]   # on a quiet machine
    python -m benchmarks hybrids --rejected [--models Bamba …]                     # likewise

Small random models of each family decode random prompts that repeat themselves, in batches of eight: greedy texts are
compared with transformers' ``generate``, sampled texts with plain decoding's. The exit code is 1 if one differs.

``--speed`` times models of about 250 million parameters that go on counting to 24, so that nearly all drafts are
accepted, with attention alone and with three of four layers recurrent or convolutional. It says what a hybrid's passes
cost, and not how often a trained model's drafts are accepted. The rows of a batch have prompts of different lengths.
``--rejected`` times the steps of the same models with drafts of seven tokens of which some are accepted.
"""

import argparse
import random
import sys
import time
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from benchmarks.machine import facts
from specdec import Generator
from specdec.backends.hf import HFBackend
from specdec.decoding.result import Result
from specdec.masks.dense import DenseCompiler
from specdec.target import Target
from specdec.tree import ROOT, DraftTree
from tests.support import families
from tests.support.examined import examined_target

STRATEGIES = ["autoregressive", "prompt_lookup:num_tokens=6", "lookahead:N=3,W=3,G=3", "auto"]
TIMED = ["autoregressive", "prompt_lookup:num_tokens=7"]
FAMILIES = {**families.STATES, **families.MORE_STATES}
VOCAB, CYCLE, REPEATS = 4096, 24, 3
DRAFTED, ACCEPTED, STEPS = 7, (0, 1, 3, 6, 7), 12
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 2048,
    "eos_token_id": None, "bos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
RECURRENT: dict[str, Any] = {
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 4, "linear_num_value_heads": 16,
    "linear_num_key_heads": 16, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
MAMBA2: dict[str, Any] = {
    "attn_layer_indices": [3, 7, 11, 15], "mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 64,
    "mamba_n_groups": 1, "mamba_expand": 2,
}  # fmt: skip
CONVOLUTION = {"layer_types": (["conv"] * 3 + ["full_attention"]) * 4, "block_auto_adjust_ff_dim": False}
TIMED_MODELS = {
    "Qwen3": ("Qwen3Config", SHAPE),
    "Qwen3.5": ("Qwen3_5TextConfig", {**SHAPE, **RECURRENT}),
    "Bamba": ("BambaConfig", {**SHAPE, **MAMBA2}),
    "LFM2": ("Lfm2Config", {**SHAPE, **CONVOLUTION}),
}


def texts(count: int) -> list[list[int]]:
    """Random prompts of 4 to 60 tokens that repeat themselves."""
    rng = random.Random(11)
    parts = [[rng.randrange(2, families.VOCAB) for _ in range(rng.randint(3, 9))] for _ in range(count)]
    return [(part * 8)[: rng.randint(4, 60)] for part in parts]


def differing(results: list[Result], expected: list[list[int]]) -> int:
    """Return the number of texts that differ."""
    return sum(list(result.token_ids) != text for result, text in zip(results, expected, strict=True))


def compare(name: str, num_texts: int, num_tokens: int) -> int:
    """Print a table row for each strategy on one family; return the number of texts that differ."""
    model, prompts, num_differing = families.make(*FAMILIES[name]), texts(num_texts), 0
    generator = Generator(model, proposer="autoregressive", max_batch_size=8)
    settings: dict[str, Any] = {"max_new_tokens": num_tokens, "eos_token_id": ()}
    sampling = {**settings, "temperature": 1.0, "seed": 3}
    greedy = [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=num_tokens,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    sampled = [list(result.token_ids) for result in generator.generate(prompts, **sampling)]
    for strategy in STRATEGIES:
        results = generator.generate(prompts, proposer=strategy, **settings)
        own, others = differing(results, greedy), 0
        if strategy != "autoregressive":
            others = differing(generator.generate(prompts, proposer=strategy, **sampling), sampled)
        per_step = sum(r.stats.num_tokens for r in results) / sum(r.stats.steps for r in results)
        print(f"| {name} | {strategy} | {num_texts} | {own} | {others} | {per_step:.2f} |", flush=True)
        num_differing += own + others
    return num_differing


def counting(config_class: str, arguments: dict[str, Any]) -> PreTrainedModel:
    """A random model whose layers say little, so that its head makes it count from 0 to 23 and over again."""
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**arguments)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and any(part in name for part in ("down_proj", "o_proj", "out_proj", "w2")):
                parameter.mul_(0.02)
        embeddings = model.get_input_embeddings().weight.normal_(std=1.0)
        head = model.get_output_embeddings().weight
        head.copy_(0.05 * embeddings.roll(1, 0))
        head[0] = 0.06 * embeddings[CYCLE - 1]
    return model


def seconds_of(generator: Generator, strategy: str, num_rows: int, num_tokens: int) -> tuple[float, float]:
    """Return the seconds of a batch of texts, the least of some, and its tokens per step and row."""
    taken, prompts = [], [[*range(CYCLE)] * 3 + [*range(row)] for row in range(num_rows)]
    for _ in range(REPEATS + 1):  # the first one warms up
        begin = time.perf_counter()
        results = generator.generate(prompts, proposer=strategy, max_new_tokens=num_tokens, eos_token_id=())
        taken.append(time.perf_counter() - begin)
    return min(taken[1:]), sum(r.stats.num_tokens for r in results) / sum(r.stats.steps for r in results)


def time_models(names: list[str], num_rows: int, num_tokens: int) -> None:
    """Print each model's speeds."""
    print("| shape | parameters | rows | strategy | tokens/s | over plain | tokens per step |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        model, plain = counting(*TIMED_MODELS[name]), 0.0
        generator = Generator(
            model, proposer="autoregressive", weights="stock", numerics="fast", max_batch_size=num_rows
        )
        size = f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.0f}M"
        for strategy in TIMED:
            seconds, per_step = seconds_of(generator, strategy, num_rows, num_tokens)
            plain = plain or seconds
            speeds = f"{num_rows * num_tokens / seconds:.1f} | {plain / seconds:.2f} | {per_step:.1f}"
            print(f"| {name} | {size} | {num_rows} | {strategy} | {speeds} |", flush=True)


def time_rejections(names: list[str]) -> None:
    """Print the time of each model's tokens where drafts are accepted in part."""
    print("| shape | accepted | ms per token | over plain |\n|---|---|---|---|")
    for name in names:
        target = examined_target(HFBackend.load(counting(*TIMED_MODELS[name]), DenseCompiler()))
        plain = milliseconds_of(target, 0, 0)
        for num_accepted in ACCEPTED:
            taken = milliseconds_of(target, DRAFTED, num_accepted)
            print(f"| {name} | {num_accepted} of {DRAFTED} | {taken:.1f} | {plain / taken:.2f} |", flush=True)


def milliseconds_of(target: Target, num_drafted: int, num_accepted: int) -> float:
    """Return the milliseconds of a token, the least of some texts, in each step of which so many are accepted."""
    tree, least = DraftTree(0), float("inf")
    tree.add_chain(ROOT, range(1, num_drafted + 1))
    for _ in range(REPEATS):
        row = target.open(capacity=256)
        target.read_all(row, [*range(CYCLE)] * 3)
        times = []
        for _ in range(STEPS + 1):  # the first one warms up
            times.append(time.perf_counter())
            planned = target.compile({row: tree})
            target.forward(planned)
            target.commit(planned, {row: tuple(range(num_accepted + 1))})
        least = min(least, (time.perf_counter() - times[1]) / STEPS / (num_accepted + 1))
        target.release(row)
    return 1000.0 * least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--num-texts", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, help="default: 64, and 33 with --speed")
    parser.add_argument("--speed", action="store_true", help="time larger models instead")
    parser.add_argument("--rejected", action="store_true", help="time drafts that are accepted in part instead")
    parser.add_argument("--models", nargs="+", choices=TIMED_MODELS, default=list(TIMED_MODELS), help="of those timed")
    parser.add_argument("--num-rows", type=int, default=1, help="of a batch, with --speed")
    parser.add_argument("--threads", type=int, help="default: 1, and 2 for times")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads or 1 + (arguments.speed or arguments.rejected))
    print(facts())
    if arguments.rejected:
        time_rejections(arguments.models)
        return 0
    if arguments.speed:
        time_models(arguments.models, arguments.num_rows, arguments.max_new_tokens or 33)
        return 0
    print(
        "| family | strategy | texts | greedy: differ | sampled: differ | tokens per step |\n|---|---|---|---|---|---|"
    )
    counts = [compare(name, arguments.num_texts, arguments.max_new_tokens or 64) for name in arguments.families]
    return int(sum(counts) > 0)


if __name__ == "__main__":
    sys.exit(main())
