"""The default strategy against plain decoding: is it ever slower?

    python -m benchmarks default [--model FOLDER] [--dtype bfloat16] [--threads 2] [--batches 1 8] [--repeats 5]

Both decode the same prompts in the same numerics, interleaved, in batches of each size. Each batch has a new generator,
so that it includes the time of learning, though not of making the generator. With ``--lasting`` one generator decodes
all batches of a repeat. ``--random`` prompts are random tokens, whose continuation at a temperature is unpredictable.
Printed: speed over plain decoding, the median over repeats with its range, the worst batch's median, and nodes per
step.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model
from benchmarks.prompts import add_prompt_options, encoded_prompts
from specdec import Generator
from specdec.decoding.stats import Stats

DEFAULT, PLAIN = "default settings", "autoregressive"
OPTIONS: dict[str, dict[str, Any]] = {DEFAULT: {}, PLAIN: {"proposer": PLAIN}}


def measure(model: Any, tokenizer: Any, prompts: list[list[int]], batch: int, arguments: argparse.Namespace) -> str:
    """Decode all prompts with default settings and with plain decoding, in a random order; return a table's row."""
    common = {"numerics": arguments.numerics, "max_batch_size": batch, "weights": arguments.weights}
    sampling = {"max_new_tokens": arguments.max_new_tokens, "temperature": arguments.temperature, "seed": 0}
    plain = Generator(model, tokenizer, proposer=PLAIN, **common)
    batches = [prompts[start : start + batch] for start in range(0, len(prompts), batch)]
    seconds = {name: [[0.0] * len(batches) for _ in range(arguments.repeats)] for name in OPTIONS}
    rng, stats = random.Random(0), list[Stats]()
    generators: dict[str, Generator] = {}
    for repeat in range(-1, arguments.repeats):
        for index, chosen in enumerate(batches):
            for name in rng.sample(list(OPTIONS), k=len(OPTIONS)):
                if name not in generators or not index or not arguments.lasting:
                    generators[name] = Generator(model, tokenizer, **OPTIONS[name], **common)
                began = time.perf_counter()
                results = generators[name].generate(chosen, **sampling)
                if repeat < 0:  # a warm-up
                    continue
                seconds[name][repeat][index] = time.perf_counter() - began
                if name != PLAIN:
                    stats += [result.stats for result in results]
    decodes = f"{arguments.dtype}, {plain.numerics.mode}, {plain.weights.kernel or 'stock'}"
    return f"| {decodes} | {batch} | {per_step(stats)} | {speed_ups(seconds[PLAIN], seconds[DEFAULT])} |"


def per_step(stats: Sequence[Stats]) -> str:
    """Return the cells of nodes and tokens per step."""
    steps = sum(each.steps for each in stats)
    nodes, tokens = sum(each.num_nodes for each in stats), sum(each.num_tokens for each in stats)
    return f"{nodes / steps:.1f} | {tokens / steps:.2f}"


def speed_ups(plain: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> str:
    """Return the cells of the speed-up over all batches, and of the batch with the smallest.

    Args:
        plain, own: the seconds of each batch, by repeat.
    """
    whole = [sum(base) / sum(fast) for base, fast in zip(plain, own, strict=True)]
    by_repeat = [[a / b for a, b in zip(base, fast, strict=True)] for base, fast in zip(plain, own, strict=True)]
    least = min(statistics.median(of_batch) for of_batch in zip(*by_repeat, strict=True))
    return f"{statistics.median(whole):.3f} [{min(whole):.3f}, {max(whole):.3f}] | {least:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--random", action="store_true", help="prompts of 32 random tokens instead")
    parser.add_argument("--lasting", action="store_true", help="one generator for all batches of a repeat")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--numerics", default="auto")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.set_defaults(num_prompts=24)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    prompts = [prompt.ids for prompt in encoded_prompts(arguments, tokenizer)]
    if arguments.random:
        rng = random.Random(0)
        prompts = [[rng.randrange(len(tokenizer)) for _ in range(32)] for _ in prompts]
    print(f"{facts()}; {len(prompts)} prompts x {arguments.max_new_tokens} new tokens, {arguments.repeats} repeats\n")
    print("| dtype, numerics, weights | batch | nodes/step | tokens/step | times plain: median [range] | worst batch |")
    print("|---|---|---|---|---|---|")
    for batch in arguments.batches:
        print(measure(model, tokenizer, prompts, batch, arguments), flush=True)


if __name__ == "__main__":
    main()
