"""A model's plain steps before and after its memory is collapsed into huge pages, in one process.

    python -m benchmarks huge_pages --model smollm2 [--backend openvino] [--tokens 96] [--texts 3]
    python -m benchmarks widened --shape 1b --num-tokens 0 --out build/1b    # a larger model for it
    python -m benchmarks huge_pages --model build/1b

Prints the milliseconds per token of each text, and what the collapse takes: gigabytes that were in small pages, those
that are collapsed, seconds, seconds of a core, and memory. All texts have the same prompt; the first one isn't timed.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint
from benchmarks.peers.memory import resident_bytes
from benchmarks.report import command, write
from benchmarks.tables import table
from specdec import Generator
from specdec.machine.huge_pages import collapse_pages, small_pages

_PROMPT = list(range(5, 37))
_MS = 1e3


def ms_per_token(generator: Generator, num_tokens: int) -> float:
    """Milliseconds of a text for each of its tokens."""
    began = time.perf_counter()
    generator.generate(_PROMPT, max_new_tokens=num_tokens, eos_token_id=[])
    return _MS * (time.perf_counter() - began) / num_tokens


def collapse() -> list[str]:
    """Collapse the process's memory: GB of small pages before, GB collapsed, seconds, of a core, MiB added."""
    before = resident_bytes("VmRSS")
    began, began_on_core = time.perf_counter(), time.thread_time()
    found = small_pages()
    collapsed = sum(map(collapse_pages, found))
    seconds, on_core = time.perf_counter() - began, time.thread_time() - began_on_core
    small = sum(pages.num_bytes for pages in found)
    added = resident_bytes("VmRSS") - before
    return [f"{small / 1e9:.2f}", f"{collapsed / 1e9:.2f}", f"{seconds:.1f}", f"{on_core:.1f}", f"{added / 2**20:.0f}"]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--backend", default="hf")
    parser.add_argument("--tokens", type=int, default=96, help="of each text")
    parser.add_argument("--texts", type=int, default=3, help="before, and again after")
    parser.add_argument("--out", type=Path, default=Path("build/huge_pages"), help="path without .json and .md")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    with Generator(
        str(checkpoint(arguments)),
        proposer="autoregressive",
        backend=arguments.backend,
        dtype=arguments.dtype,
        numerics="fast",
        background_work=False,
    ) as generator:
        ms_per_token(generator, arguments.tokens)
        before = [ms_per_token(generator, arguments.tokens) for _ in range(arguments.texts)]
        cost = collapse()
        after = [ms_per_token(generator, arguments.tokens) for _ in range(arguments.texts)]
    rss = f"{resident_bytes('VmRSS') / 2**20:.0f}"
    heading = ["before, ms", "after, ms", "GB small", "GB collapsed", "seconds", "of a core", "MiB added", "MiB in all"]
    lines = [[", ".join(f"{ms:.1f}" for ms in series) for series in (before, after)] + [*cost, rss]]
    parts = [f"`{command('huge_pages')}`", facts(), table(heading, lines)]
    data = {"command": command("huge_pages"), "machine": facts(), "before": before, "after": after, "cost": cost}
    write(arguments.out, "\n\n".join(parts) + "\n", data)


if __name__ == "__main__":
    main()
