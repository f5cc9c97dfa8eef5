"""Does specdec work on a GPU, and how fast is it there?

    python -m benchmarks gpu --out FOLDER [--model SMOLLM2_FOLDER] [--prompts prompts.jsonl] [--seconds 480]
    python -m benchmarks gpu --out FOLDER --device cpu  # a rehearsal with tiny sizes

Parts, in the order of worth: rates of the card; bits of rows in products; times of passes and of single kernels; speed
of strategies; their texts against plain decoding; a model of 8 billion random weights. Each part is guarded, and
printed and written to ``gpu.json`` when it ends, with tracebacks in ``failures.txt``. A process that died is continued
by the same command: parts that were begun are left out.

The exit code is 3 if the device fails for good, so that another process has to go on.
"""

import argparse
import faulthandler
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.gpu.card import card
from benchmarks.gpu.kernels import kernels_alone
from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.passes import Measured, passes
from benchmarks.gpu.products import ROWS, row_bits
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY, Shape
from benchmarks.gpu.speed import batches, contest
from benchmarks.gpu.texts import texts
from benchmarks.prompts import add_prompt_options, encoded_prompts
from specdec import demo
from specdec.models.loading import load_pretrained

_POSITIONS = 2**15
Part = Callable[[Report, Findings], object]


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        num_bytes: that are read and copied for the card's rates.
        shapes: of models whose products and kernels are measured; passes of the first one if there is no ``--model``.
        rows: of products.
        kernel_nodes, kernel_contexts: of the kernels alone.
        most_bytes: of matrices that a kernel reads in turn.
        texts: their number and length, and the longest prompt.
        large: the shape of the model with random weights.
        batches: sizes of whole batches.
    """

    num_bytes: int
    shapes: tuple[Shape, ...]
    rows: tuple[int, ...]
    kernel_nodes: tuple[int, ...]
    kernel_contexts: tuple[int, ...]
    most_bytes: int
    passes: Measured
    texts: tuple[int, int, int]
    large: Shape
    passes_of_large: Measured
    batches: tuple[int, ...] = (8, 32)

    @classmethod
    def on(cls, device: torch.device) -> "Sizes":
        """Those of a measurement, or of a rehearsal on a CPU."""
        if device.type == "cuda":
            nodes = (1, 8, 32, 64, 128)
            passes, large = Measured(nodes, (256, 1024, 8192)), Measured((1, 8, 32, 128), (1024,), (8192,), 8.0)
            return cls(
                2**33,
                (SMOLLM2, LLAMA_8B),
                ROWS,
                (1, 32, 128),
                (256, 8192),
                2**27,
                passes,
                (6, 64, 700),
                LLAMA_8B,
                large,
            )
        few = Measured((1, 4), (16,), (24,), 0.2)
        return cls(2**20, (TINY,), (1, 2, 7, 16), (1, 4), (16, 40), 2**14, few, (2, 8, 60), TINY, few, (2,))


class MeasuredModel:
    """The measured model in bfloat16 with its prompts, loaded when a part needs it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._loaded: tuple[Any, list[list[int]]] | None = None

    def load(self) -> tuple[Any, list[list[int]]]:
        """The model on its device, and prompts."""
        if self._loaded is None:
            folder = self._arguments.model
            model, tokenizer = demo.load("bfloat16") if folder is None else load_pretrained(folder, dtype="bfloat16")
            prompts = [prompt.ids for prompt in encoded_prompts(self._arguments, tokenizer)]
            self._loaded = model.to(self._arguments.device).eval(), prompts
        return self._loaded


def measure(report: Report, arguments: argparse.Namespace) -> None:
    """Run the parts: the seconds of each, and what makes it."""
    device, half, ways, measured = (
        torch.device(arguments.device),
        torch.bfloat16,
        arguments.ways,
        MeasuredModel(arguments),
    )
    sizes = Sizes.on(device)
    shapes, kernels = sizes.shapes, (sizes.kernel_nodes, sizes.kernel_contexts, half, device, sizes.most_bytes)

    def random(shape: Shape) -> Any:
        return shape.model(half, device, _POSITIONS)

    def speed() -> Part:
        return contest(*measured.load(), arguments.num_tokens, arguments.head, ways)

    def in_batches() -> Part:
        return batches(*measured.load(), arguments.num_tokens, ways, sizes.batches)

    def of_passes() -> Part:  # times don't depend on the weights
        return passes(measured.load()[0] if arguments.model else random(shapes[0]), ways, sizes.passes)

    parts: dict[str, tuple[float, Callable[[], Part]]] = {
        "card": (20, lambda: partial(card, device, sizes.num_bytes)),
        "rows bfloat16": (60, lambda: row_bits(shapes, half, device, sizes.rows)),
        "passes": (80, of_passes),
        "kernels": (50, lambda: kernels_alone(shapes, *kernels)),
        "speed": (100, speed),
        "batches": (40, in_batches),
        "texts bfloat16": (50, lambda: texts("bfloat16", arguments.device, *sizes.texts)),
        "passes of 8 billion weights": (90, lambda: passes(random(sizes.large), ways, sizes.passes_of_large)),
        "rows float16": (20, lambda: row_bits(shapes, torch.float16, device, sizes.rows)),
        "texts float32": (45, lambda: texts("float32", arguments.device, *sizes.texts)),
    }
    for name in arguments.parts or parts:
        run(report, name, *parts[name], arguments.device)


def run(report: Report, name: str, seconds: float, make: Callable[[], Part], device: str) -> None:
    """Make and run a part, and check that the device still works.

    Raises:
        SystemExit: if it doesn't, with the code 3.
    """

    def made(report: Report, findings: Findings) -> None:
        make()(report, findings)  # what a part needs is loaded under guard, too

    report.part(name, seconds, made)
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        report.found[name]["device"] = f"failed for good: {error}"[:400]
        report.write()
        sys.exit(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="folder of a Llama model; default: the built-in model")
    parser.add_argument("--head", help="folder of an EAGLE-3 head of the model, whose drafts are timed too")
    ways = ["static auto", "fused auto"]
    parser.add_argument("--ways", nargs="+", default=ways, help="backends and numerics whose speed is measured")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=480.0, help="time for all parts")
    parser.add_argument("--num-tokens", type=int, default=128, help="of each text that is timed")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="names as in gpu.json; default: all")
    add_prompt_options(parser)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report = Report.opened(arguments.out, arguments.seconds)
    left = report.found["began"] + arguments.seconds - report.clock()
    if left <= 0:
        return
    with (arguments.out / "hang.txt").open("a", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(max(1.0, left + 10.0), exit=True, file=file)
        measure(report, arguments)
        faulthandler.cancel_dump_traceback_later()
    report.found["ended"] = report.clock()
    report.write()


if __name__ == "__main__":
    main()
