"""``specdec tune`` for lookahead, given a fifth of the full grid's time, compared with the grid's best setting.

    python -m benchmarks tuning [--num-prompts 12] [--max-new-tokens 64] [--repeats 10] [--threads 2]

The grid is every tunable N, W and G, each run once on every prompt, in random order. The best settings of grid and
search are then compared, interleaved.
"""

import argparse
import itertools
import time

import torch

from benchmarks.machine import facts
from specdec import LookaheadProposer, compare, demo
from specdec.apps.comparison import ComparisonSession
from specdec.apps.comparison.prompts import EvaluationPrompt, demo_prompts
from specdec.apps.comparison.tune import Tuner


def grid() -> dict[str, str]:
    """Every setting, as a string."""
    names, values = LookaheadProposer.tunable.keys(), LookaheadProposer.tunable.values()
    settings = ("lookahead:" + ",".join(map("{}={}".format, names, chosen)) for chosen in itertools.product(*values))
    return {setting: setting for setting in settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = demo.load()
    prompts: list[EvaluationPrompt] = demo_prompts()[:: len(demo_prompts()) // arguments.num_prompts]
    options = {"tokenizer": tokenizer, "max_new_tokens": arguments.max_new_tokens}
    print(facts())
    session = ComparisonSession(model, grid(), prompts, repeats=1, **options)
    began = time.perf_counter()
    full = session.run()
    grid_seconds = time.perf_counter() - began
    best = max(full.rows, key=lambda row: row.tokens_per_second if row.strategy in grid() else 0.0)
    print(f"grid: {len(grid())} settings in {grid_seconds:.0f} s; best {best.strategy}, {best.speed_up}", flush=True)
    began = time.perf_counter()
    tuning = Tuner(model, "lookahead", prompts, minutes=grid_seconds / 5 / 60, **options).run()
    seconds = time.perf_counter() - began
    print(
        f"tune: {len(tuning.trials)} settings screened in {seconds:.0f} s; {tuning.strategy}, {tuning.gain}", flush=True
    )
    if tuning.strategy == best.strategy:
        print("the same setting")
        return
    contenders = {"tuned": tuning.strategy, "grid": best.strategy}
    head_to_head = compare(model, contenders, prompts, repeats=arguments.repeats, **options)
    print(f"head to head, {arguments.repeats} repeats: tuned over grid's best {head_to_head.speed_up('tuned', 'grid')}")


if __name__ == "__main__":
    main()
