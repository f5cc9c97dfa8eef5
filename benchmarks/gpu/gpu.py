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
from benchmarks.speed.widened import SHAPES, widen
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


def measure(report: Report, arguments: argparse.Namespace) -> None:
    """Run all parts."""
    models, device = Models(arguments.model, arguments.device), arguments.device
    report.found.setdefault("machine", _machine(device))
    run(report, "texts float32", 35, lambda: texts("float32", device, ("fast", "exact")), device)

    loaded: dict[str, Any] = {}

    def model(dtype: str) -> Any:
        if dtype not in loaded:
            loaded.clear()
            loaded[dtype], loaded["tokenizer"] = models.load(dtype)
        return loaded[dtype]

    def prompts() -> list[list[int]]:
        return [prompt.ids for prompt in encoded_prompts(arguments, loaded["tokenizer"])]

    def speed(dtype: str) -> Part:
        target = model(dtype)
        return contest(target, prompts(), arguments.num_tokens)

    def widened() -> Part:
        wide = models.widened(model("bfloat16"))
        return contest(wide, prompts(), arguments.num_tokens // 2)

    run(report, "speed bfloat16", 75, lambda: speed("bfloat16"), device)
    run(
        report, "profile", 12, lambda: profiles(model("bfloat16"), prompts_after(model, prompts), report.folder), device
    )
    run(report, "speed widened bfloat16", 35, widened, device)
    run(report, "texts bfloat16", 20, lambda: texts("bfloat16", device, ("fast", "exact")), device)
    run(report, "bits of rows bfloat16", 8, lambda: row_bits([model("bfloat16")]), device)
    run(report, "texts float16", 15, lambda: texts("float16", device, ("fast", "exact")), device)
    run(report, "speed float32", 30, lambda: speed("float32"), device)
    run(report, "bits of rows float32", 8, lambda: row_bits([model("float32")]), device)


def prompts_after(model: Callable[[str], Any], prompts: Callable[[], list[list[int]]]) -> list[int]:
    """The first prompt, once the model's tokenizer is loaded."""
    model("bfloat16")
    return prompts()[0]


def run(report: Report, name: str, seconds: float, make: Callable[[], Part], device: str) -> None:
    """Make and run a part, and check that the device still works.

    Raises:
        SystemExit: if it doesn't, with the code 3.
    """
    report.part(name, seconds, lambda report, findings: make()(report, findings))
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        report.found[name]["device"] = f"failed for good: {error}"[:400]
        report.write()
        sys.exit(3)


def _machine(device: str) -> dict[str, Any]:
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    flags = {
        "matmul precision": torch.get_float32_matmul_precision(),
        "bfloat16 reduced precision": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    }
    return {"device": where, "facts": facts(), "cuda": torch.version.cuda, **flags, **recorded()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="folder of a Llama model; default: the built-in model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=200.0, help="time for all parts")
    parser.add_argument("--num-tokens", type=int, default=128, help="of each text that is timed")
    add_prompt_options(parser)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report = Report.opened(arguments.out, arguments.seconds)
    left = report.found["began"] + arguments.seconds - report.clock()
    with (arguments.out / "hang.txt").open("a", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(max(1.0, left + 10.0), exit=True, file=file)
        measure(report, arguments)
        faulthandler.cancel_dump_traceback_later()
    report.found["ended"] = report.clock()
    report.write()


if __name__ == "__main__":
    main()
