"""Steps on OpenVINO before, while and after memory is collapsed into huge pages in the background, in one process.

    python -m benchmarks static_shapes --model smollm2 [--seconds 60] [--proposer auto] [--numerics auto]
        [--backend openvino:weights=int8] [--num-prompts 3] [--tokens 96]
    python -m benchmarks static_shapes --model smollm2 --sizes 1 6 8 12 16

Decodes the prompts in turn, with all work in the background as by default. Prints a line for each stretch of steps with
the same work in the background, the passes by size before the first and after the last of it, the number of texts that
differ from their prompt's first one, and the process's peak memory.

With ``--sizes`` nothing is decoded: passes of these sizes run on the dynamic graph and on a static one, in turns.
"""

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import torch

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint
from benchmarks.peers.memory import resident_bytes
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.report import command, write
from benchmarks.tables import table
from specdec import Generator
from specdec.record import StepRecord

_WORK = ("huge pages",)  # names of threads
_SIZES = 1, 6, 8, 12, 16, 32  # of passes
_MS, _MIB = 1e3, 2**20
_TURNS, _IN_A_ROW = 8, 8  # passes of each graph, of which the first in a row isn't timed
_CONTEXT = 128  # tokens


@dataclass
class Stretch:
    """Steps with the same work in the background."""

    work: str
    began: float
    steps: list[float] = field(default_factory=list)  # seconds
    passes: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds, by size
    num_tokens: int = 0

    def add(self, record: StepRecord) -> None:
        """Add a step."""
        self.steps.append(record.total_seconds)
        self.num_tokens += sum(len(outcome.tokens) for outcome in record.outcomes)
        size = next((size for size in _SIZES if record.width <= size), 0)
        self.passes[size].append(record.seconds["forward"])

    def line(self) -> list[str]:
        """Return the stretch's line in the table."""
        seconds = sum(self.steps)
        numbers = f"{self.began:.1f}", self.work or "none", f"{len(self.steps)}", f"{self.num_tokens / seconds:.0f}"
        return [*numbers, f"{_MS * mean(self.steps):.1f}", f"{_MS * median(self.steps):.1f}"]


class Watch:
    """Divides steps into stretches by the threads that run."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.stretches: list[Stretch] = []

    def note(self, record: StepRecord) -> None:
        """Note a step."""
        running = {thread.name for thread in threading.enumerate()}
        work = " and ".join(name for name in _WORK if name in running)
        if not self.stretches or self.stretches[-1].work != work:
            self.stretches.append(Stretch(work, time.perf_counter() - self.began))
        self.stretches[-1].add(record)


def decode(generator: Generator, prompts: Iterable[list[int]], num_tokens: int, seconds: float, watch: Watch) -> int:
    """Decode the prompts in turn for some seconds; return how many texts differ from their prompt's first."""
    first, num_differing, prompts = dict[int, list[int]](), 0, list(prompts)
    while time.perf_counter() - watch.began < seconds:
        for number, prompt in enumerate(prompts):
            result = generator.generate(prompt, max_new_tokens=num_tokens, eos_token_id=[], on_step=watch.note)
            num_differing += first.setdefault(number, result.token_ids) != result.token_ids
    return num_differing


def by_size(before: Mapping[int, Sequence[float]], after: Mapping[int, Sequence[float]]) -> list[list[str]]:
    """Return the median milliseconds of passes by size, and their numbers."""
    return [
        [f"up to {size}" if size else "more"]
        + [f"{_MS * median(each[size]):.1f} ({len(each[size])})" if each.get(size) else "–" for each in (before, after)]
        for size in sorted({*before, *after}, key=lambda size: size or 1000)
    ]


def compared(folder: Path, sizes: Iterable[int]) -> Iterator[list[str]]:
    """Yield a line for each size of passes: medians of both graphs, and what the static one takes to compile."""
    from specdec_openvino.options import OpenVINOOptions

    from benchmarks.speed.step_profile import Context, graphs_of  # which needs the plug-in

    options = OpenVINOOptions()
    graphs, vocab_size = graphs_of(folder, options)
    dynamic = graphs.compiled(options, frozenset())
    for size in sizes:
        began = time.perf_counter()
        static = graphs.compiled(options, frozenset(), size)
        compiling = time.perf_counter() - began
        contexts = [Context(dynamic, _CONTEXT, vocab_size, kind) for kind in ((), (static,))]
        taken: list[list[float]] = [[], []]
        for _ in range(_TURNS):
            for context, seconds in zip(contexts, taken, strict=True):
                for _ in range(_IN_A_ROW):
                    began = time.perf_counter()
                    context.run(size)
                    seconds.append(time.perf_counter() - began)
        timed = [[each for place, each in enumerate(seconds) if place % _IN_A_ROW] for seconds in taken]
        own, fixed = map(median, timed)
        yield [
            str(size),
            *(f"{_MS * each:.2f}" for each in (own, fixed, own - fixed)),
            f"{1 - fixed / own:.0%}",
            f"{compiling:.1f}",
        ]
        del contexts, static


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--proposer", default="auto")
    parser.add_argument("--numerics", default="auto", choices=("auto", "exact", "fast"))
    parser.add_argument("--tokens", type=int, default=96, help="of each text")
    parser.add_argument("--seconds", type=float, default=60.0, help="of decoding")
    parser.add_argument("--sizes", type=int, nargs="+", help="compare passes of these sizes instead of decoding")
    parser.add_argument("--out", type=Path, default=Path("build/static_shapes"), help="path without .json and .md")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    if arguments.sizes:
        heading = ["tokens", "dynamic, ms", "static, ms", "less by, ms", "less by", "compile, s"]
        lines = list(compared(checkpoint(arguments), arguments.sizes))
        report = f"`{command('static_shapes')}`\n\n{facts()}\n\n{table(heading, lines)}\n"
        write(arguments.out, report, {"command": command("static_shapes"), "passes": lines})
        return
    chosen = {name: getattr(arguments, name) for name in ("backend", "proposer", "numerics", "dtype")}
    with Generator(str(checkpoint(arguments)), **chosen) as generator:
        prompts = [prompt.ids for prompt in encoded_prompts(arguments, generator.tokenizer)]
        generator.generate(prompts[0], max_new_tokens=8)
        loaded, watch = resident_bytes("VmRSS"), Watch()
        num_differing = decode(generator, prompts, arguments.tokens, arguments.seconds, watch)
        held = resident_bytes("VmRSS")
        began = time.perf_counter()
    closing = time.perf_counter() - began
    stretches = watch.stretches
    quiet = [stretch for stretch in stretches if not stretch.work] or stretches
    memory = f"{loaded / _MIB:.0f} MiB at first, {held / _MIB:.0f} at the end"
    memory += f", {resident_bytes('VmHWM') / _MIB:.0f} at most"
    parts = [
        f"`{command('static_shapes')}`",
        facts(),
        table(
            ["from second", "in the background", "steps", "tokens/s", "ms per step", "median"],
            [stretch.line() for stretch in stretches],
        ),
        table(["nodes", "ms of a pass, at first", "at the end"], by_size(quiet[0].passes, quiet[-1].passes)),
        f"Texts that differ from their prompt's first: {num_differing}. Memory: {memory}. Closing: {closing:.2f} s.",
    ]
    lines = [stretch.line() for stretch in stretches]
    write(arguments.out, "\n\n".join(parts) + "\n", {"command": command("static_shapes"), "stretches": lines})


if __name__ == "__main__":
    main()
