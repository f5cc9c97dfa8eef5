"""Each source alone, the merge, and the merge without each source: tokens and nodes per step, and speed over plain.

    python -m benchmarks sources --model smollm2 --chat --per-category 4 --prompts spec_bench.jsonl humaneval.jsonl \\
        --dtype float32 --numerics fast --temperature 0 --batch 1 --out build/sources.jsonl
    python -m benchmarks sources --tables build/sources.jsonl

All strategies decode a batch of prompts, in random order, before the next batch starts. Each strategy has one generator
for the whole run, which starts without memory of earlier texts. Each line of ``--out`` is one strategy's batch; an
interrupted run continues after the last complete round. Speed is tokens per second over plain decoding's in the same
numerics, for the whole request and excluding the first token, with a 95 % bootstrap interval over batches, and the
median over batches. Texts are compared with plain decoding's.
"""

import argparse
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model
from benchmarks.prompts import EncodedPrompt, add_prompt_options, encoded_prompts
from benchmarks.tables import table
from specdec import Generator, Proposer, Result
from specdec.apps.comparison.statistics import Ratio, speed_ratio, speed_value
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer

PLAIN = "autoregressive"
# A merge of one source is the merge without the other, under the same price.
MERGES: dict[str, Proposer] = {
    "auto without token_recycling": MergedProposer([SuffixProposer()]),
    "auto without suffix": MergedProposer([TokenRecyclingProposer()]),
}
CONTENDERS = (
    "auto",
    *MERGES,
    "suffix",
    "token_recycling",
    "prompt_lookup:num_tokens=3",
    "lookahead:N=5,W=7,G=7",
    "jacobi",
)
SETTING = "dtype", "numerics", "temperature", "batch"
Run = dict[str, Any]


def setting_of(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in SETTING)


def batches(prompts: Sequence[EncodedPrompt], size: int) -> list[list[EncodedPrompt]]:
    """Group prompts of one category if a batch is one prompt; otherwise keep their order."""
    return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]


def measure(arguments: argparse.Namespace) -> None:
    """Decode what is missing in the file, and append a line per strategy and batch."""
    setting = {name: getattr(arguments, name) for name in SETTING}
    known = [run for run in read([arguments.out]) if setting_of(run) == tuple(setting.values())]
    names = [PLAIN, *arguments.proposer]
    done = {index for index in {run["index"] for run in known} if {*names} <= _names(known, index)}
    model, tokenizer = load_model(arguments)
    prompts, rng = encoded_prompts(arguments, tokenizer), random.Random(0)
    sampling = {"temperature": arguments.temperature} if arguments.temperature else {}
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lookahead with N=")  # that it is slow here is what is measured
        options = {"numerics": arguments.numerics, "max_batch_size": arguments.batch}
        made = {
            name: stack.enter_context(Generator(model, tokenizer, proposer=MERGES.get(name, name), **options))
            for name in names
        }
        for generator in made.values():  # what is measured when it is first needed, and packed
            generator.generate([prompts[0].ids] * arguments.batch, max_new_tokens=16, seed=0, **sampling)
            generator.forget()
        common = {**setting, "machine": facts()}
        for index, batch in enumerate(batches(prompts, arguments.batch)):
            if index in done:
                continue
            shared = {**common, "index": index, "categories": [prompt.category for prompt in batch]}
            texts, runs = dict[str, list[list[int]]](), list[Run]()
            for name in rng.sample(names, k=len(names)):
                began = time.perf_counter()
                results = made[name].generate(
                    [prompt.ids for prompt in batch], max_new_tokens=arguments.max_new_tokens, seed=index, **sampling
                )
                runs.append({**shared, "name": name, **figures(results, time.perf_counter() - began)})
                texts[name] = [result.token_ids for result in results]
            for run in runs:
                pairs = zip(texts[run["name"]], texts[PLAIN], strict=True)
                run["num_different"] = sum(own != plain for own, plain in pairs)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(run) + "\n" for run in runs)
            print(f"{index + 1} of {len(prompts) // arguments.batch} batches", file=sys.stderr, flush=True)


def figures(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return a run's times, counts and mean seconds by phase, over the requests of a batch."""
    stats_of_all = [result.stats for result in results]
    return {
        "seconds": seconds,
        "seconds_behind_first": seconds - max(stats.seconds_to_first_token for stats in stats_of_all),
        "tokens": sum(stats.num_tokens for stats in stats_of_all),
        "steps": sum(stats.steps for stats in stats_of_all),
        "nodes": sum(stats.num_nodes for stats in stats_of_all),
        "phases": {
            phase: statistics.fmean(stats.seconds[phase] for stats in stats_of_all) for phase in stats_of_all[0].seconds
        },
    }


def _names(runs: Iterable[Run], index: int) -> set[str]:
    return {run["name"] for run in runs if run["index"] == index}


def read(paths: Sequence[Path]) -> list[Run]:
    """Return the lines of files; no lines of a file that does not exist yet."""
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text("utf-8").splitlines()]


def _speeds(runs: Sequence[Run], seconds: str) -> np.ndarray:
    return np.array([[run["tokens"] for run in runs], [run[seconds] for run in runs]], dtype=float)


def ratio(own: Sequence[Run], plain: Sequence[Run], seconds: str) -> Ratio:
    """The speed of a strategy's batches over plain decoding's."""
    return speed_ratio(_speeds(own, seconds), _speeds(plain, seconds))


def report(runs: Sequence[Run]) -> str:
    """Tables by setting: each strategy, then speed and tokens per step by category if a batch is one prompt."""
    parts = []
    for setting in dict.fromkeys(setting_of(run) for run in runs):
        own = [run for run in runs if setting_of(run) == setting]
        names = [name for name in (PLAIN, *CONTENDERS) if any(run["name"] == name for run in own)]
        whole = sorted({run["index"] for run in own if {*names} <= _names(own, run["index"])})
        by_name = {
            name: [next(run for run in own if run["name"] == name and run["index"] == index) for index in whole]
            for name in names
        }
        dtype, numerics, temperature, batch = setting
        num_prompts = sum(len(run["categories"]) for run in by_name[PLAIN])
        parts.append(f"{dtype}, {numerics}, temperature {temperature:g}, batch {batch}, {num_prompts} prompts")
        parts.append(_overall(by_name))
        if batch == 1:
            parts.append(_by_category(by_name))
    return "\n\n".join(parts)


def _overall(by_name: dict[str, list[Run]]) -> str:
    lines = []
    for name, runs in by_name.items():
        tokens, steps, nodes = (sum(run[what] for run in runs) for what in ("tokens", "steps", "nodes"))
        speeds = [str(ratio(runs, by_name[PLAIN], what)) for what in ("seconds", "seconds_behind_first")]
        each = [plain["seconds"] / own["seconds"] for own, plain in zip(runs, by_name[PLAIN], strict=True)]
        low, middle, high = np.percentile(each, [25, 50, 75])
        speeds.append(f"{middle:.2f} [{low:.2f}, {high:.2f}]")
        different = sum(run["num_different"] for run in runs)
        lines.append([f"`{name}`", f"{tokens / steps:.2f}", f"{nodes / steps:.1f}", *speeds, str(different)])
    speeds = "times plain", "excluding the first token", "by batch: median [quartiles]"
    return table(["strategy", "tokens/step", "nodes/step", *speeds, "texts that differ"], lines)


def _by_category(by_name: dict[str, list[Run]]) -> str:
    categories = list(dict.fromkeys(run["categories"][0] for run in by_name[PLAIN]))
    lines = []
    for name, runs in by_name.items():
        if name == PLAIN:
            continue
        cells = []
        for category in categories:
            own = [run for run in runs if run["categories"][0] == category]
            plain = [run for run in by_name[PLAIN] if run["categories"][0] == category]
            value = speed_value(_speeds(own, "seconds_behind_first"), _speeds(plain, "seconds_behind_first"))
            tau = sum(run["tokens"] for run in own) / sum(run["steps"] for run in own)
            cells.append(f"{value:.2f} ({tau:.2f})")
        lines.append([f"`{name}`", *cells])
    return table(["times plain excluding the first token (tokens/step)", *categories], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--proposer", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--numerics", choices=("exact", "fast"), default="fast")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("build/sources.jsonl"))
    parser.add_argument("--tables", type=Path, nargs="+", help="only print what these files have")
    arguments = parser.parse_args()
    if arguments.tables is None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        measure(arguments)
    print(report(read(arguments.tables or [arguments.out])))


if __name__ == "__main__":
    main()
