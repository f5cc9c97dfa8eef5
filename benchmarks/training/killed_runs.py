"""Does a training run that is killed and resumed again and again end with the figures of an uninterrupted one?

`specdec train head` runs once to its end, and once more while SIGKILL ends it at random moments, after each of which
`--resume` goes on. Both heads are printed as the command reports them.
"""

import argparse
import random
import re
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks killed_runs", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seconds", type=float, nargs=2, default=[20.0, 90.0], help="least and most until a kill")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a folder for both heads")
    arguments = parser.parse_args()
    command = [
        sys.executable, "-m", "specdec", "train", "head", "--resume", "--model", arguments.model,
        "--minutes", str(arguments.minutes), "--threads", str(arguments.threads), "--out",
    ]  # fmt: skip
    print("killed:", killed_and_resumed([*command, str(arguments.out / "killed")], arguments), flush=True)
    print("uninterrupted:", finished([*command, str(arguments.out / "uninterrupted")]), flush=True)


def killed_and_resumed(command: list[str], arguments: argparse.Namespace) -> str:
    """Kill the command at random moments, then let it end; return its report."""
    draw = random.Random(arguments.seed)
    for _ in range(arguments.kills):
        began, seconds = time.perf_counter(), draw.uniform(*arguments.seconds)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        stages = re.findall("^(text|training):", process.communicate()[1], flags=re.MULTILINE)
        stage = stages[-1] if stages else "the start, or before the first report"
        print(f"killed after {time.perf_counter() - began:.0f} s, in {stage}", flush=True)
    return finished(command)


def finished(command: list[str]) -> str:
    """Run the command to its end; return its report."""
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return next(line for line in found.splitlines() if line.startswith("the best head"))


if __name__ == "__main__":
    main()
