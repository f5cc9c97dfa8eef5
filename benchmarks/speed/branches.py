"""Branches of draft trees shared by several processes, against one process: text, time per step, and communication.

    python -m benchmarks branches --model smollm2 --out benchmarks/results/branches_float32.json

Every process has one thread. The first decodes the same requests alone and with the others, in turn, so that both modes
see the same machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.machine import facts, recorded
from benchmarks.models import add_model_options, load_model

_STRATEGIES = (
    "lookahead:N=5,W=7,G=7",
    "lookahead:N=5,W=15,G=15",
    "token_recycling:num_nodes=60,min_probability=0",
    "auto",
)
_PROMPTS = ("# shutil\ndef copytree(src, dst", "The history of Rome begins", "import os\n\ndef walk(")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.set_defaults(model="smollm2", dtype="float32", threads=1)
    parser.add_argument("--strategy", action="append", help="those of the paper and a merge without this")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        _decode(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "branches", *sys.argv[1:], "--meet", f"{folder}/meet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(given.ranks)]
        codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes))


def _decode(given: argparse.Namespace) -> None:
    import torch.distributed as dist
    from specdec_distributed import group

    from specdec import Generator

    dist.init_process_group(
        "gloo",
        init_method=f"file://{given.meet}",
        rank=int(given.rank),
        world_size=given.ranks,
        timeout=timedelta(seconds=300),
    )
    model, tokenizer = load_model(given)
    with group(model, 300.0) as leads:
        if not leads:
            return
        strategies = given.strategy or _STRATEGIES
        found: dict[str, dict[str, list[Any]]] = {}
        for strategy in strategies:
            ways = {
                name: Generator(model, tokenizer, proposer=strategy, backend=backend)
                for name, backend in (("alone", "hf"), ("together", "distributed"))
            }
            figures = found[strategy] = {
                f"{name} {what}": [] for name in ways for what in ("step", "forward", "tokens")
            }
            figures["communication"], figures["same"], figures["nodes"] = [], [], []
            for number in range(given.rounds):
                texts = {}
                for name in list(ways)[:: 1 if number % 2 else -1]:
                    records: list[Any] = []
                    prompt = _PROMPTS[number % len(_PROMPTS)]
                    before = _communication(model)
                    began = time.perf_counter()
                    result = ways[name].generate(prompt, max_new_tokens=given.max_tokens, on_step=records.append)
                    seconds = time.perf_counter() - began
                    steps = [record for record in records if record.kind == "step"]
                    figures[f"{name} step"] += [sum(record.seconds.values()) for record in steps]
                    figures[f"{name} forward"] += [record.seconds["forward"] for record in steps]
                    figures[f"{name} tokens"].append(len(result.token_ids) / seconds)
                    if name == "together":
                        figures["communication"].append((_communication(model) - before) / max(1, len(records)))
                        figures["nodes"] += [record.width for record in steps]
                    texts[name] = result.token_ids
                figures["same"].append(texts["alone"] == texts["together"])
            _report(strategy, figures, ways["together"].numerics, ways["alone"].weights)
            for each in ways.values():
                each.close()
        if given.out is not None:
            given.out.write_text(
                json.dumps(
                    {"recorded": recorded(), "machine": facts(), "args": vars(given), "found": found}, default=str
                )
            )
        print(facts())


def _communication(model: Any) -> float:
    from specdec_distributed.ranks import ranks_of

    ranks = ranks_of(model)
    return 0.0 if ranks is None else ranks.seconds


def _report(strategy: str, figures: dict[str, list[Any]], numerics: Any, weights: Any) -> None:
    middle = {name: statistics.median(values) for name, values in figures.items() if values and name != "same"}
    ratio = middle["alone step"] / middle["together step"]
    print(
        f"{strategy}: {middle['nodes']:.0f} nodes, step {1e3 * middle['alone step']:.1f} ms alone, "
        f"{1e3 * middle['together step']:.1f} ms together ({ratio:.2f} times), "
        f"communication {1e3 * middle['communication']:.1f} ms of it, "
        f"{middle['alone tokens']:.1f} and {middle['together tokens']:.1f} tokens/s, "
        f"text {'equal' if all(figures['same']) else 'DIFFERENT'}; {numerics}; {weights}",
        flush=True,
    )


if __name__ == "__main__":
    main()
