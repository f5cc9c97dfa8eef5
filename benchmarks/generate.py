"""specdec beside transformers' ``generate``, plain and with prompt lookup: same model, prompts, machine and tokens.

    python -m benchmarks.generate [--repeats 5] [--threads 1] [--dtype float32] [--prompts FILE.jsonl]

Contenders run interleaved, in random order for each prompt and repeat, after a warm-up. A contender's time for a repeat
is the sum over prompts; printed are the median over repeats, the quartiles of its ratio to plain ``generate`` in the
same repeat, and whether its tokens equal plain ``generate``'s.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.machine import facts
from benchmarks.texts import texts
from specdec import Generator, demo

Decode = Callable[[list[int]], tuple[int, ...]]
BASELINE = "transformers, plain"
LOOKUPS = [(2, 10), (2, 3), (2, 2), (3, 10), (3, 3), (3, 20)]  # n-gram size, number of tokens
OURS = [
    "autoregressive",
    "prompt_lookup:max_ngram=2,num_tokens=10,prefer=first",
    *(f"prompt_lookup:max_ngram={n},num_tokens={count}" for n, count in LOOKUPS),
    "prompt_lookup:max_ngram=2,num_tokens=2,num_matches=3",
    "prompt_lookup:max_ngram=3,num_tokens=10,num_matches=2",
    "lookahead:N=5,W=7,G=7",
]


def contenders(model: Any, max_new_tokens: int) -> dict[str, Decode]:
    """Each contender as a function from prompt ids to new ids."""

    def theirs(**extra: int) -> Decode:
        def decode(prompt: list[int]) -> tuple[int, ...]:
            ids = torch.tensor([prompt])
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, **extra
            )
            return tuple(output[0, len(prompt) :].tolist())

        return decode

    def ours(proposer: str) -> Decode:
        generator = Generator(model, proposer=proposer)
        return lambda prompt: generator.generate(prompt, max_new_tokens=max_new_tokens, seed=0).token_ids

    named = {BASELINE: theirs()}
    for n, count in LOOKUPS:
        named[f"transformers, prompt lookup n={n} tokens={count}"] = theirs(
            prompt_lookup_num_tokens=count, max_matching_ngram_size=n
        )
    return named | {f"specdec, {proposer}": ours(proposer) for proposer in OURS}


def measure(
    named: dict[str, Decode], prompts: list[list[int]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds per repeat, and how many texts differ from the baseline's."""
    expected = [named[BASELINE](prompt) for prompt in prompts]
    differing = {
        name: sum(decode(prompt) != tokens for prompt, tokens in zip(prompts, expected, strict=True))
        for name, decode in named.items()
    }
    rng = random.Random(0)
    seconds = {name: [0.0] * repeats for name in named}
    for repeat in range(repeats):
        for prompt in prompts:
            for name in rng.sample(list(named), k=len(named)):
                began = time.perf_counter()
                named[name](prompt)
                seconds[name][repeat] += time.perf_counter() - began
    return seconds, differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--prompts", type=Path, help="a JSON Lines file (HumanEval, Spec-Bench) instead of the demo's")
    parser.add_argument("--category", help="only this category's prompts")
    parser.add_argument("--only", nargs="+", default=[""], help="only contenders with one of these in their name")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = demo.load(dtype=arguments.dtype)
    chosen = texts(arguments.prompts, arguments.category, arguments.num_prompts)
    prompts = [tokenizer(text)["input_ids"] for text in chosen]
    named = contenders(model, arguments.max_new_tokens)
    named = {name: named[name] for name in named if name == BASELINE or any(part in name for part in arguments.only)}
    seconds, differing = measure(named, prompts, arguments.repeats)
    length = statistics.median(map(len, prompts))
    print(f"{facts()}, {arguments.dtype}")
    print(f"{len(prompts)} prompts of {length:g} tokens (median) x {arguments.max_new_tokens} new tokens\n")
    print("| contender | median seconds | times as fast as plain generate: median [quartiles] | texts that differ |")
    print("|---|---|---|---|")
    for name, times in seconds.items():
        ratios = [base / own for base, own in zip(seconds[BASELINE], times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {statistics.median(times):.2f} | {middle:.2f} [{low:.2f}, {high:.2f}] | {differing[name]} |")


if __name__ == "__main__":
    main()
