"""Lookahead's tokens per step: the published algorithm, specdec's, and the gain from each addition.

    python -m benchmarks lookahead [--N 5] [--W 7] [--G 7] [--seeds 5] [--prompts FILE.jsonl] [--temperature 1]

Steps are counted, not timed, so a busy machine doesn't matter. The window starts from random tokens, so each variant
runs once per seed; the table has tokens per step over all prompts, as mean and range over seeds. At temperature 0 the
reference (``reference_lookahead.py``) runs as well.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.drafting.reference_lookahead import decode
from benchmarks.prompts import prompt_ids
from specdec import Generator, LookaheadProposer, demo

VARIANTS: dict[str, dict[str, object]] = {
    "specdec, defaults": {},
    "… without column 0 as a candidate": {"verify_window": False},
    "… without n-grams of prompt and text": {"pool_from_prompt": False},
    "… without either": {"pool_from_prompt": False, "verify_window": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("N", 5), ("W", 7), ("G", 7), ("seeds", 5), ("max-new-tokens", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=Path, help="a JSON Lines file (HumanEval, Spec-Bench) instead of the demo's")
    arguments = parser.parse_args()
    model, tokenizer = demo.load()
    prompts = prompt_ids(tokenizer, arguments.prompts, most=24)
    size = {"N": arguments.N, "W": arguments.W, "G": arguments.G}
    count = arguments.max_new_tokens

    def reference(pool_from_prompt: bool, repair_bonus: bool) -> Callable[[int], float]:
        def tokens_per_step(seed: int) -> float:
            options = *size.values(), seed, repair_bonus, pool_from_prompt, frozenset({0, 1})
            runs = [decode(model, prompt, count, *options) for prompt in prompts]
            return sum(len(tokens) for tokens, _ in runs) / sum(steps for _, steps in runs)

        return tokens_per_step

    def ours(options: dict[str, object]) -> Callable[[int], float]:
        generator = Generator(
            model, numerics="fast", proposer=LookaheadProposer.model_validate({**size, **options}), max_batch_size=4
        )

        def tokens_per_step(seed: int) -> float:
            results = generator.generate(
                prompts, max_new_tokens=count, temperature=arguments.temperature, seed=1000 * seed
            )
            return sum(r.stats.num_tokens for r in results) / sum(r.stats.steps for r in results)

        return tokens_per_step

    rows = {}
    if arguments.temperature == 0:
        for pool in (False, True):
            for repaired in (False, True):
                name = f"reference{', prompt pool' if pool else ''}{', bonus repaired' if repaired else ''}"
                rows[name] = reference(pool, repaired)
    rows |= {name: ours(options) for name, options in VARIANTS.items()}
    print(
        f"(N, W, G) = {tuple(size.values())}, temperature {arguments.temperature:g}, {len(prompts)} prompts x {count}\n"
    )
    print("| variant | tokens per step, mean over seeds | range |\n|---|---|---|")
    for name, tokens_per_step in rows.items():
        taus = [tokens_per_step(seed) for seed in range(arguments.seeds)]
        print(f"| {name} | {statistics.mean(taus):.3f} | {min(taus):.3f}–{max(taus):.3f} |", flush=True)


if __name__ == "__main__":
    main()
