"""Does a training run that is killed and resumed again and again end with the head of an uninterrupted one?

The built-in model's head is trained to the end, with two seeds, and then once more per stage while SIGKILL ends its
process at random moments, after each of which another process resumes it: while it writes text, while it trains, or
anywhere by the wall clock, which may be in the middle of a save. A simulated clock gives all runs the same amount of
work on any machine. Kills in training leave every weight as it would have been; the exit code is 1 if one differs.

A kill while text is written loses what was written since the last save, and the documents that were unfinished then are
cut there, so that run's text is another one. The second seed shows how far figures differ without kills. All heads are
compared on held-out documents of their own and on the same text, which none of them was trained on.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from specdec import demo
from specdec.heads.training import HeadSettings, Progress, Watch, train_head, write_own_text
from specdec.heads.training.acceptance import held_out_acceptance
from specdec.heads.training.checkpoint import FILE as CHECKPOINT
from specdec.heads.training.disk import TEXT
from specdec.heads.training.eagle3_training import DEPTH, Eagle3Training
from specdec.heads.training.kept_states import KeptStates
from specdec.heads.training.packing import pack
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText

SETTINGS = HeadSettings(
    minutes=0.5, text_share=0.2, num_rows=32, answer_tokens=32, row_length=256, held_out_every=5
)  # fmt: skip
TEXT_FOR_ALL = SETTINGS.model_copy(update={"minutes": 0.1, "seed": 2})
SECONDS_PER_READING = 0.15
FIGURES = "figures.json"
STAGES = "training", "text", "anywhere"
MOST_REPORTS = {"training": 40, "text": 12}  # before a kill
COLUMNS = (
    "run", "kills", "answer tokens", "documents", "of these in the uninterrupted run", "tensors that differ",
    "updates", "tokens per step", "on the same text",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks killed_runs", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for all heads")
    parser.add_argument("--one", nargs=2, metavar=("STAGE", "REPORTS"), help="only train in OUT, and end by a kill")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--run-seed", type=int, default=0, help="of the run, with --one")
    arguments = parser.parse_args()
    if arguments.one:
        train(arguments.out, arguments.one[0], int(arguments.one[1]), arguments.run_seed)
        return
    expected = arguments.out / "uninterrupted"
    run(expected)
    run(arguments.out / "another_seed", seed=1)
    kills, seconds = {"uninterrupted": 0, "another_seed": 0}, figures(expected)["seconds"]
    for stage in arguments.stages:
        draw, folder, kills[stage] = random.Random(arguments.seed), arguments.out / stage, 0
        while kills[stage] < arguments.kills and killed(folder, stage, draw, seconds):
            kills[stage] += 1
        run(folder)
    rows = table(arguments.out, kills)
    print(*rows, sep="\n")
    if "training" in arguments.stages and difference(expected, arguments.out / "training")[0]:
        raise SystemExit(1)


def killed(folder: Path, stage: str, draw: random.Random, seconds: float) -> bool:
    """Kill a run in a folder at a random moment; return False if it ended before that."""
    if stage == "anywhere":
        after = draw.uniform(0.05, 0.4) * seconds
        code, moment = run(folder, timeout=after), f"{after:.0f} s"
    else:
        reports = draw.randrange(3, MOST_REPORTS[stage])
        code, moment = run(folder, (stage, reports)), f"{reports} reports of {stage}"
    checkpoint = "with" if (folder / CHECKPOINT).exists() else "without"
    print(f"{folder.name}: killed after {moment}, exit code {code}, {checkpoint} a checkpoint", flush=True)
    return code != 0


def run(folder: Path, kill: tuple[str, int] = ("none", 0), seed: int = 0, timeout: float | None = None) -> int:
    """Train in a process of its own, unless the folder's run has ended; return the exit code: 0, or a kill's.

    Args:
        folder: of the head.
        kill: a stage, and the number of its reports after which the process kills itself.
        seed: of the run.
        timeout: seconds after which the process is killed; None for never.
    """
    command = [sys.executable, "-m", "benchmarks", "killed_runs", "--out", str(folder), "--one", kill[0], str(kill[1]),
               "--run-seed", str(seed)]  # fmt: skip
    if (folder / FIGURES).exists():
        return 0
    try:
        code = subprocess.run(command, check=False, timeout=timeout).returncode
    except subprocess.TimeoutExpired:  # by SIGKILL
        return -signal.SIGKILL
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"{folder}: the run failed with exit code {code}")
    return code


def clock() -> Any:
    """Return a clock on which each reading takes the same time."""
    readings = iter(range(1, sys.maxsize))
    return lambda: SECONDS_PER_READING * next(readings)


def train(folder: Path, stage: str, after: int, seed: int) -> None:
    """Train or resume; SIGKILL after a number of reports of a stage."""
    torch.set_num_threads(1)
    began, num_reports = time.monotonic(), 0

    def watch(progress: Progress) -> None:
        nonlocal num_reports
        num_reports += progress.stage == stage
        if progress.stage == stage and num_reports == after:
            os.kill(os.getpid(), signal.SIGKILL)

    model, tokenizer = demo.load()
    settings = SETTINGS.model_copy(update={"seed": seed})
    resume = (folder / TEXT).exists()
    head = train_head(model, tokenizer, folder, settings, resume=resume, watch=Watch(on_progress=watch, clock=clock()))
    found = {"tokens_per_step": head.acceptance.tokens_per_step, "updates": head.run.num_updates,
             "answer_tokens": head.num_answer_tokens, "seconds": time.monotonic() - began}  # fmt: skip
    (folder / FIGURES).write_text(json.dumps(found), encoding="utf-8")


def figures(folder: Path) -> dict[str, Any]:
    """Return the figures of a run that has ended."""
    found: dict[str, Any] = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    return found


def table(out: Path, kills: dict[str, int]) -> list[str]:
    """Return the runs' figures as rows of Markdown."""
    torch.set_num_threads(1)
    model, tokenizer = demo.load()
    common = out / "text_for_all"
    text, _ = write_own_text(
        model, tokenizer, common, TEXT_FOR_ALL, resume=(common / TEXT).exists(), watch=Watch(clock=clock())
    )
    rows = pack(text, SETTINGS.row_length, np.random.default_rng(0))
    expected, written = out / "uninterrupted", documents(out / "uninterrupted")
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for name, count in kills.items():
        folder = out / name
        own, (differ, num_tensors), ended = documents(folder), difference(expected, folder), figures(folder)
        training = Eagle3Training.from_folder(model, folder)
        found = held_out_acceptance(training, KeptStates(TargetStates(model, training.layer_ids), 0), rows, DEPTH, 8)
        cells = (
            name.replace("_", " "), count, f"{ended['answer_tokens']:,}", len(own), len(own & written),
            f"{len(differ)} of {num_tensors}", ended["updates"], f"{ended['tokens_per_step']:.4f}",
            f"{found.tokens_per_step:.4f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def documents(folder: Path) -> set[bytes]:
    """Return the documents of a run's text."""
    text = TrainingText.load(folder / "text.npz")
    return {text.document(index).tobytes() for index in range(len(text))}


def difference(folder: Path, other: Path) -> tuple[list[str], int]:
    """Return the names of the tensors in which two heads differ, and the number of all tensors."""
    ours, theirs = (load_file(each / "model.safetensors") for each in (folder, other))
    return [name for name in ours if not torch.equal(ours[name], theirs[name])], len(ours)


if __name__ == "__main__":
    main()
