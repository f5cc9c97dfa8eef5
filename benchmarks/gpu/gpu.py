"""Does specdec work on a GPU, and how fast is it there?

    python -m benchmarks gpu --out FOLDER [--model SMOLLM2_FOLDER] [--prompts prompts.jsonl] [--seconds 200]
    python -m benchmarks gpu --out FOLDER --device cpu --seconds 30 --num-tokens 8

Parts, in the order of worth: texts of every strategy against plain decoding in float32; speed of the model and of a
widened one, whose steps cost as much as a model of 1 to 2 billion parameters; a profile of ten steps; texts in half
precision; bits of rows. Each part is guarded and written to ``gpu.json`` when it ends, with tracebacks in
``failures.txt``. A process that died is continued by the same command: parts that were begun are left out.

The exit code is 3 if the device fails for good, so that another process has to go on.
"""

import argparse
import faulthandler
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.profiling import profiles
from benchmarks.gpu.row_bits import row_bits
from benchmarks.gpu.speed import contest
from benchmarks.gpu.texts import texts
from benchmarks.machine import facts, recorded
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.widening import SHAPES, widen
from specdec import demo
from specdec.models.loading import load_pretrained

Part = Callable[[Report, Findings], object]


class Models:
    """The measured model in several dtypes, on the device."""

    def __init__(self, folder: str | None, device: str) -> None:
        self._folder, self._device = folder, device

    def load(self, dtype: str) -> tuple[Any, Any]:
        """The model and its tokenizer."""
        model, tokenizer = demo.load(dtype) if self._folder is None else load_pretrained(self._folder, dtype=dtype)
        return model.to(self._device).eval(), tokenizer

    def widened(self, model: Any) -> Any:
        """A model that says the same, with four times the width, at the costs of 1 to 2 billion parameters."""
        config = model.config
        shape = SHAPES["1b"]
        if self._folder is not None:
            shape = {
                "hidden_size": 4 * config.hidden_size,
                "num_layers": config.num_hidden_layers,
                "num_heads": 4 * config.num_attention_heads,
                "num_key_value_heads": 4 * config.num_key_value_heads,
                "intermediate_size": 4 * config.intermediate_size,
            }
        with torch.device(self._device):
            return widen(model, **shape)


class Session:
    """Makes the parts; a model is loaded when a part needs it, and the last one is retained."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self._models = arguments, Models(arguments.model, arguments.device)
        self._dtype = ""
        self._model: Any = None
        self._prompts: list[list[int]] = []

    def model(self, dtype: str) -> Any:
        """The measured model."""
        if dtype != self._dtype:
            self._model, tokenizer = self._models.load(dtype)
            self._dtype = dtype
            self._prompts = [prompt.ids for prompt in encoded_prompts(self._arguments, tokenizer)]
        return self._model

    def texts(self, dtype: str) -> Part:
        """Texts of the built-in model."""
        return texts(dtype, self._arguments.device)

    def speed(self, dtype: str) -> Part:
        """Speed of the measured model."""
        model = self.model(dtype)
        arguments = self._arguments
        return contest(model, self._prompts, arguments.num_tokens, arguments.head, arguments.ways)

    def speed_widened(self) -> Part:
        """Speed at the costs of a larger model, on half as many tokens."""
        wide = self._models.widened(self.model("bfloat16"))
        return contest(wide, self._prompts, self._arguments.num_tokens // 2)

    def profile(self) -> Part:
        """Profiles of the measured model."""
        model = self.model("bfloat16")
        return profiles(model, self._prompts[0], self._arguments.out)

    def row_bits(self, dtype: str) -> Part:
        """Bits of the measured model's products."""
        return row_bits(self.model(dtype))


def measure(report: Report, arguments: argparse.Namespace) -> None:
    """Run the parts."""
    session, device = Session(arguments), arguments.device
    parts: dict[str, tuple[float, Callable[[], Part]]] = {
        "machine": (10, lambda: partial(_machine, device)),
        "texts float32": (45, partial(session.texts, "float32")),
        "speed bfloat16": (85, partial(session.speed, "bfloat16")),
        "profile bfloat16": (14, session.profile),
        "speed widened bfloat16": (35, session.speed_widened),
        "bits of rows bfloat16": (8, partial(session.row_bits, "bfloat16")),
        "texts bfloat16": (25, partial(session.texts, "bfloat16")),
        "texts float16": (15, partial(session.texts, "float16")),
        "speed float32": (40, partial(session.speed, "float32")),
        "bits of rows float32": (8, partial(session.row_bits, "float32")),
    }
    for name in arguments.parts or parts:
        run(report, name, *parts[name], device)


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


def _machine(device: str, report: Report, found: Findings) -> None:
    found["device"] = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    found["cuda"] = torch.version.cuda
    found["matmul precision"] = torch.get_float32_matmul_precision()
    report.attempt(found, "facts", facts)
    report.attempt(found, "commit", recorded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="folder of a Llama model; default: the built-in model")
    parser.add_argument("--head", help="folder of an EAGLE-3 head of the model, whose drafts are timed too")
    ways = ["hf auto", "static auto", "fused auto"]
    parser.add_argument("--ways", nargs="+", default=ways, help="backends and numerics whose speed is measured")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=200.0, help="time for all parts")
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
