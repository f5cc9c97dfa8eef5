"""Is this checkout as fast as another one, does it write the same texts, and is ``auto`` never the slower choice?

    git worktree add ../before COMMIT
    python -m benchmarks gate --before ../before --head HEAD --chat --per-category 1 \\
        --prompts spec_bench.jsonl humaneval.jsonl

Table G has SmolLM2 on each engine with four strategies. All contenders of an engine are processes of their own, which
take turns prompt by prompt; texts end where the model ends them. They are started several times, in opposite orders. A
row shows the median over repeats of all starts of the speed over that of the other checkout. The exit code is 1 if a
row is below 0.97, if a text differs, or if ``auto`` is slower than ``prompt_lookup`` anywhere. Without ``--before``,
the last is all that is tested.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.interleaved import Measurement, Rounds, Run, measure
from benchmarks.machine import facts
from benchmarks.models import checkpoint
from benchmarks.peers.process import Setup
from benchmarks.prompts import add_prompt_options, encoded_prompts
from benchmarks.report import command, without_paths, write
from benchmarks.speed.compare import ends_of_text, head_folder
from benchmarks.summary import Spread
from benchmarks.tables import table

LEAST = 0.97
ENGINES = {  # the dtype of the checkpoint, and the generator's options
    "torch float32": ("float32", "backend=hf+numerics=auto"),
    "torch bfloat16": ("bfloat16", "backend=hf+numerics=auto"),
    "OpenVINO float32": ("float32", "backend=openvino+numerics=exact"),
    "OpenVINO bfloat16": ("bfloat16", "backend=openvino+numerics=exact"),
    "OpenVINO bfloat16 fast": ("bfloat16", "backend=openvino+numerics=fast"),
    "OpenVINO int8": ("float32", "backend=openvino:weights=int8+numerics=exact"),
}
STRATEGIES = {
    "autoregressive": "autoregressive",
    "prompt_lookup": "prompt_lookup:num_tokens=5,max_ngram=3",
    "auto": "auto",
    "auto + head": "auto+eagle3:head={head}",
}


@dataclass(frozen=True)
class Line:
    """A strategy on an engine.

    Attributes:
        before, now: tokens per second, medians over repeats; ``before`` is None without another checkout.
        ratio: speed over the other checkout's, over repeats.
        over_lookup: speed over ``prompt_lookup``'s, over repeats, for ``auto`` alone.
        num_different: prompts whose text isn't the other checkout's.
        peak_before, peak_now: bytes with the model.
    """

    engine: str
    strategy: str
    before: float | None
    now: float
    ratio: Spread | None
    over_lookup: Spread | None
    num_different: int
    peak_before: int | None
    peak_now: int | None

    @property
    def is_worse(self) -> bool:
        """Whether the line fails the gate; in fast numerics texts may differ."""
        lookup = self.over_lookup
        is_slow = self.ratio is not None and self.ratio.median < LEAST
        is_large = bool(self.peak_before and self.peak_now) and self.peak_now * LEAST > self.peak_before
        is_other = self.num_different > 0 and "fast" not in self.engine
        return is_slow or is_large or is_other or (lookup is not None and lookup.median < 1.0)


def contender(checkout: str, engine: str, strategy: str, head: str) -> str:
    """The name under which a strategy of a checkout is measured; "now" is this one."""
    peer = "specdec" if checkout == "now" else f"specdec@{checkout}"
    return f"{peer}:{STRATEGIES[strategy].format(head=head)}+{ENGINES[engine][1]}"


def lines_of(found: Measurement, engine: str, strategies: Sequence[str], head: str) -> list[Line]:
    """The table's lines of an engine, without those whose contenders failed."""

    def runs_of(checkout: str, strategy: str) -> list[Run]:
        name = contender(checkout, engine, strategy, head)
        return [run for run in found.runs if run.contender == name and name not in found.failures]

    def line(strategy: str) -> Line:
        now, before = runs_of("now", strategy), runs_of("before", strategy)
        lookup = runs_of("now", "prompt_lookup") if strategy == "auto" else []
        texts = {run.prompt: run.tokens for run in before}
        return Line(
            engine,
            strategy,
            statistics.median(speeds(before)) if before else None,
            statistics.median(speeds(now)),
            Spread.of(ratios(now, before)) if before else None,
            Spread.of(ratios(now, lookup)) if lookup else None,
            len({run.prompt for run in now if texts and texts[run.prompt] != run.tokens}),
            max((run.total_bytes or 0 for run in before), default=None),
            max((run.total_bytes or 0 for run in now), default=None),
        )

    return [line(strategy) for strategy in strategies if runs_of("now", strategy)]


def speeds(runs: Sequence[Run]) -> list[float]:
    """Tokens per second of each repeat, all prompts together."""
    repeats = {run.repeat: [each for each in runs if each.repeat == run.repeat] for run in runs}
    return [sum(len(run.tokens) for run in own) / sum(run.seconds for run in own) for own in repeats.values()]


def ratios(own: Sequence[Run], other: Sequence[Run]) -> list[float]:
    """The speed over another contender's, repeat by repeat."""
    return [mine / its for mine, its in zip(speeds(own), speeds(other), strict=True)]


def as_table(lines: Sequence[Line]) -> str:
    """Table G as Markdown."""
    heading = ["engine", "strategy", "tokens/s before", "now", "now over before", "over prompt lookup"]
    heading += ["texts that differ", "peak MiB before", "now", ""]

    def mebibytes(count: int | None) -> str:
        return f"{count / 2**20:.0f}" if count else "–"

    return table(
        heading,
        (
            [
                line.engine,
                line.strategy,
                f"{line.before:.1f}" if line.before else "–",
                f"{line.now:.1f}",
                str(line.ratio or "–"),
                str(line.over_lookup or ""),
                str(line.num_different),
                mebibytes(line.peak_before),
                mebibytes(line.peak_now),
                "worse" if line.is_worse else "",
            ]
            for line in lines
        ),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="default: all; may be given several times")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="likewise")
    parser.add_argument("--head", type=head_folder, metavar="FOLDER", help="a trained head; without it, no such line")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--starts", type=int, default=2, help="of all processes, which are faster the later they start")
    parser.add_argument("--repeats", type=int, default=2, help="of each start")
    parser.add_argument("--warm-up", type=float, default=10, metavar="SECONDS", help="of each contender, not measured")
    parser.add_argument("--out", type=Path, default=Path("build/gate"), help="path without .json and .md")
    add_prompt_options(parser)
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    head = arguments.head or ""
    strategies = [name for name in arguments.strategy or STRATEGIES if head or "{head}" not in STRATEGIES[name]]
    checkouts = {} if arguments.before is None else {"before": arguments.before}
    lines, failures, runs = list[Line](), dict[str, str](), list[dict[str, Any]]()
    for engine in arguments.engine or ENGINES:
        dtype = ENGINES[engine][0]
        folder = checkpoint(argparse.Namespace(model="smollm2", dtype=dtype))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        prompts = [prompt.ids for prompt in encoded_prompts(arguments, tokenizer)]
        setup = Setup(folder, dtype, arguments.threads, {}, ends_of_text(folder, tokenizer), checkouts)
        rounds = Rounds(arguments.max_new_tokens, arguments.repeats, arguments.warm_up, starts=arguments.starts)
        names = [contender(side, engine, each, head) for each in strategies for side in ("now", *checkouts)]
        found = measure(names, setup, prompts, rounds)
        lines += lines_of(found, engine, strategies, head)
        failures |= {name: without_paths(reason) for name, reason in found.failures.items()}
        runs += [{"engine": engine, **asdict(run), "tokens": len(run.tokens)} for run in found.runs]
        what = f"prompts: {len(prompts)}, new tokens: at most {arguments.max_new_tokens}, starts: {arguments.starts}, "
        what += f"repeats of each: {arguments.repeats}"
        report = [f"`{command('gate')}`", facts(), what, as_table(lines), *failures.values()]
        data = {"command": command("gate"), "machine": facts(), "failures": failures, "runs": runs}
        write(arguments.out, "\n\n".join(report), {**data, "lines": [asdict(line) for line in lines]})
    if failures or any(line.is_worse for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
