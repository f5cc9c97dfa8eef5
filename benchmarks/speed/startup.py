"""Start-up times: imports, answers of the command line, making a generator, the first token; and memory.

    python -m benchmarks startup [--model smollm2] [--dtype bfloat16] [--backend openvino] [--repeats 5]
    python -m benchmarks startup --model smollm2 --only loaded generate decoding "Generator(" --busy
    python -m benchmarks startup --model smollm2 --dtype float32 --only "Generator(name" --backend openvino:weights=int8

Each figure is a process of its own, and compared processes alternate. Medians, minimum and maximum. A first start has
an empty cache folder; a later start finds the results of the first. For generators made by name, the process's peak
memory until then is reported too, the largest over the repeats, on Linux. ``--busy`` keeps two threads of one other
process computing meanwhile.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
# The same for a model given by name, which the selected engine reads; imports are not timed.
OPEN = """
import time, torch, transformers
torch.set_num_threads({threads})
from transformers import AutoModelForCausalLM, AutoTokenizer
from specdec import Generator
began = time.perf_counter()
generator = Generator({folder!r}, dtype={dtype!r}, backend={backend!r})
print(time.perf_counter() - began)
from benchmarks.peers.memory import resident_bytes
print(resident_bytes("VmHWM") / 2**20)
"""
DECODE = """
import torch
torch.set_num_threads({threads})
from specdec import Generator
generator = Generator({folder!r}, dtype={dtype!r}, backend={backend!r})
generator.generate("The capital of France is", max_new_tokens=128, eos_token_id=())
generator.forget()  # else the same text would be drafted from what the first request has taught
print(generator.generate("The capital of France is", max_new_tokens=128, eos_token_id=()).stats.total_seconds)
"""


BUSY = """
import torch
torch.set_num_threads(2)
matrix = torch.ones(1024, 1024)
while True:
    matrix @ matrix
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """A process, and when its clock stops: at exit, at the first byte of output, or at the time that it prints.

    It may print its peak memory in MiB after the time.
    """

    command: list[str]
    stops: Literal["at exit", "at first byte", "as printed"] = "at exit"
    is_first: bool = False  # with an empty cache folder

    def figures(self) -> list[float]:
        """The seconds, and the peak memory in MiB if it is printed."""
        with tempfile.TemporaryDirectory() as folder:
            return self._run({**os.environ, "XDG_CACHE_HOME": folder} if self.is_first else None)

    def _run(self, environment: dict[str, str] | None) -> list[float]:
        began = time.perf_counter()
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert process.stdout is not None
        first = process.stdout.read(1)
        until_first_byte = time.perf_counter() - began
        printed = first + process.stdout.read()
        process.wait()
        if self.stops == "as printed":
            return [*map(float, printed.split())]
        return [until_first_byte if self.stops == "at first byte" else time.perf_counter() - began]


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keep two cores busy with another process."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--backend", default="hf")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="figures whose names contain one of these texts")
    parser.add_argument("--busy", action="store_true", help="beside another process with two busy threads")
    arguments = parser.parse_args()
    folder = str(checkpoint(arguments))
    python, command = [sys.executable, "-c"], [sys.executable, "-m", "specdec"]
    given = {"folder": folder, "dtype": arguments.dtype, "threads": arguments.threads, "model": arguments.model}
    given["backend"] = arguments.backend
    generate = [*command, "generate", "The capital of France is", "--model", folder, "--dtype", arguments.dtype]
    generate += ["--backend", arguments.backend]
    contenders = {
        "import torch": Contender([*python, "import torch"]),
        "import specdec": Contender([*python, "import specdec"]),
        "from specdec import Generator": Contender([*python, "from specdec import Generator"]),
        "specdec --help": Contender([*command, "--help"]),
        "a misspelt option": Contender([*command, "generate", "x", "--propser", "jacobi"]),
        "a misspelt strategy": Contender([*command, "generate", "x", "--proposer", "jacoby"]),
        "transformers imported, the model loaded": Contender([*python, LOAD.format(**given)]),
        "specdec generate, until the first text": Contender([*generate, "--max-new-tokens", "8"], "at first byte"),
        "specdec generate, 128 tokens": Contender([*generate, "--max-new-tokens", "128"]),
        "of these, decoding": Contender([*python, DECODE.format(**given)], "as printed"),
        "Generator(model), of a model that is loaded": Contender([*python, MAKE.format(**given)], "as printed"),
        "Generator(name), which loads it": Contender([*python, OPEN.format(**given)], "as printed"),
        "Generator(name), first start": Contender([*python, OPEN.format(**given)], "as printed", is_first=True),
    }
    taken: dict[str, list[list[float]]] = {
        name: [] for name in contenders if any(text in name for text in arguments.only)
    }
    with busy_neighbour() if arguments.busy else nullcontext():
        for _ in range(arguments.repeats):
            for name, figures in taken.items():
                figures.append(contenders[name].figures())
    print(f"{facts()}; {arguments.model or 'the built-in model'}, {arguments.dtype}, {arguments.threads} threads\n")
    print("| | seconds | minimum to maximum | peak MiB |\n|---|---|---|---|")
    for name, figures in taken.items():
        seconds, *peaks = zip(*figures, strict=True)
        peak = f"{max(peaks[0]):.0f}" if peaks else "–"
        print(f"| {name} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {peak} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
