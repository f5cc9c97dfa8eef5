"""Does a training run that is killed and resumed again and again end with the head of an uninterrupted one?

The built-in model's head is trained to the end, with two seeds, and then once more per stage while SIGKILL ends its
process at random moments, after each of which another process resumes it. A simulated clock gives all runs the same
amount of work on any machine. Kills in training leave every weight as it would have been; the exit code is 1 if one
differs. A kill while text is written loses what was written since the last save, and the documents that were unfinished
then are cut there, so that run's text is other and shorter text; the second seed shows how far figures differ without
kills.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from specdec import demo
from specdec.training import HeadSettings, Progress, Watch, train_head

SETTINGS = HeadSettings(minutes=1.0, kind="eagle3", text_share=0.1, num_rows=32, answer_tokens=32, held_out_every=5)
SECONDS_PER_READING = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks killed_runs", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for all heads")
    parser.add_argument("--one", nargs=2, metavar=("STAGE", "REPORTS"), help="only train in OUT, and end by a kill")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--stages", nargs="+", choices=("text", "training"), default=["training", "text"])
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--run-seed", type=int, default=0, help="of the run, with --one")
    arguments = parser.parse_args()
    if arguments.one:
        train(arguments.out, arguments.one[0], int(arguments.one[1]), arguments.run_seed)
        return
    expected = arguments.out / "uninterrupted"
    print("uninterrupted:", run(expected, None), flush=True)
    print("uninterrupted, another seed:", run(arguments.out / "another_seed", None, seed=1), flush=True)
    differing = list[str]()
    for stage in arguments.stages:
        draw, folder = random.Random(arguments.seed), arguments.out / stage
        for _ in range(arguments.kills):
            after = draw.randrange(3, 40 if stage == "training" else 12)
            print(f"killed after {after} reports of {stage}: {run(folder, (stage, after))}", flush=True)
        print(f"killed in {stage}: {run(folder, None)}", flush=True)
        differ, count = difference(expected, folder)
        print(f"weights: {len(differ)} of {count} tensors differ", flush=True)
        differing += differ if stage == "training" else []
    if differing:
        raise SystemExit(1)


def run(folder: Path, kill: tuple[str, int] | None, seed: int = 0) -> str:
    """Train in a process of its own; return its head's figures, or how it ended."""
    stage, after = kill or ("none", 0)
    command = [sys.executable, "-m", "benchmarks", "killed_runs", "--out", str(folder), "--one", stage, str(after),
               "--run-seed", str(seed)]  # fmt: skip
    code = subprocess.run(command, check=False).returncode
    return f"exit code {code}" if code else (folder / "figures.json").read_text(encoding="utf-8")


def train(folder: Path, stage: str, after: int, seed: int) -> None:
    """Train or resume; SIGKILL after a number of reports of a stage."""
    torch.set_num_threads(1)
    num_reports, now = 0, 0.0

    def clock() -> float:
        nonlocal now
        now += SECONDS_PER_READING
        return now

    def watch(progress: Progress) -> None:
        nonlocal num_reports
        num_reports += progress.stage == stage
        if progress.stage == stage and num_reports == after:
            os.kill(os.getpid(), signal.SIGKILL)

    model, tokenizer = demo.load()
    settings = SETTINGS.model_copy(update={"seed": seed})
    head = train_head(model, tokenizer, folder, settings, resume=True, watch=Watch(on_progress=watch, clock=clock))
    figures = {"tokens_per_step": head.acceptance.tokens_per_step, "updates": head.run.num_updates,
               "answer_tokens": head.num_answer_tokens, "positions": head.acceptance.num_positions}  # fmt: skip
    (folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def difference(folder: Path, other: Path) -> tuple[list[str], int]:
    """Return the names of the tensors in which two heads differ, and the number of all tensors."""
    ours, theirs = (load_file(each / "model.safetensors") for each in (folder, other))
    return [name for name in ours if not torch.equal(ours[name], theirs[name])], len(ours)


if __name__ == "__main__":
    main()
