"""The share of comparisons of equals that name a winner: the same strategy under two names, on real runs.

    python -m benchmarks equals [--comparisons 40] [--num-prompts 8] [--max-new-tokens 16] [--threads 1]

One in twenty is what 95 % intervals promise.
"""

import argparse

import torch

from benchmarks.machine import facts
from specdec import compare, demo
from specdec.comparison.prompts import demo_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = demo.load()
    prompts = demo_prompts()[:: len(demo_prompts()) // arguments.num_prompts][: arguments.num_prompts]
    equals = {"autoregressive": "autoregressive", "again": "autoregressive"}
    winners = []
    for seed in range(arguments.comparisons):
        comparison = compare(
            model,
            equals,
            prompts,
            tokenizer=tokenizer,
            numerics="fast",  # in exact numerics the second would be the reference of texts, and no contender
            seed=seed,
            max_new_tokens=arguments.max_new_tokens,
        )
        winners.append(comparison.winner)
        print(f"{seed + 1}: {comparison.speed_up('again')}, winner: {comparison.winner}", flush=True)
    num_named = sum(winner is not None for winner in winners)
    print(f"{facts()}\n{num_named} of {arguments.comparisons} comparisons of equals named a winner")


if __name__ == "__main__":
    main()
