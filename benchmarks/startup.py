"""Seconds until something happens: imports, the command line's answers, making a generator, the first token.

    python -m benchmarks startup [--model smollm2] [--dtype bfloat16] [--repeats 5]

Each figure is a process of its own, and those that are to be compared take turns. Medians, with the least and greatest.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint

LOAD = """
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({folder!r})
model = AutoModelForCausalLM.from_pretrained({folder!r}, dtype={dtype!r}).eval()
"""
# Pages of the weights are read when they are first used: a pass of the model's own comes before the clock starts.
MAKE = """
import time, torch
torch.set_num_threads({threads})
from specdec import Generator
from benchmarks.models import load_model
import argparse
model, tokenizer = load_model(argparse.Namespace(model={model!r}, dtype={dtype!r}, threads={threads}))
model(torch.ones(1, 1, dtype=torch.long))
began = time.perf_counter()
generator = Generator(model, tokenizer)
print(time.perf_counter() - began)
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """A process, and when its clock stops: at its exit, at the first byte of its output, or as it prints itself."""

    command: list[str]
    stops: Literal["at exit", "at first byte", "as printed"] = "at exit"

    def seconds(self) -> float:
        began = time.perf_counter()
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        first = process.stdout.read(1)
        until_first_byte = time.perf_counter() - began
        printed = first + process.stdout.read()
        process.wait()
        if self.stops == "as printed":
            return float(printed)
        return until_first_byte if self.stops == "at first byte" else time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    folder = str(checkpoint(arguments))
    python, command = [sys.executable, "-c"], [sys.executable, "-m", "specdec"]
    given = {"folder": folder, "dtype": arguments.dtype, "threads": arguments.threads, "model": arguments.model}
    generate = [*command, "generate", "The capital of France is", "--model", folder, "--dtype", arguments.dtype]
    contenders = {
        "import torch": Contender([*python, "import torch"]),
        "import specdec": Contender([*python, "import specdec"]),
        "from specdec import Generator": Contender([*python, "from specdec import Generator"]),
        "specdec --help": Contender([*command, "--help"]),
        "a misspelt option": Contender([*command, "generate", "x", "--propser", "jacobi"]),
        "a misspelt strategy": Contender([*command, "generate", "x", "--proposer", "jacoby"]),
        "transformers imported, the model loaded": Contender([*python, LOAD.format(**given)]),
        "specdec generate, until the first text": Contender([*generate, "--max-new-tokens", "8"], "at first byte"),
        "Generator(model), of a model that is loaded": Contender([*python, MAKE.format(**given)], "as printed"),
    }
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.repeats):
        for name, contender in contenders.items():
            taken[name].append(contender.seconds())
    print(f"{facts()}; {arguments.model or 'the built-in model'}, {arguments.dtype}, {arguments.threads} threads\n")
    print("| | seconds | least to greatest |\n|---|---|---|")
    for name, seconds in taken.items():
        print(f"| {name} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
