"""How much faster are drafts under a JSON schema? Plain decoding and ``auto``, both under the schema, in turns.

    python -m benchmarks constrained [--model smollm2] [--backend openvino] [--temperatures 0 0.8] [--repeats 3]
    python -m benchmarks constrained --task incident          # another schema, with lists of nested objects
    python -m benchmarks constrained --batch 16               # one batch, and what its masks cost
    python -m benchmarks constrained --trace                  # each step of the first text
    python -m benchmarks constrained --write build            # order.json and order.jsonl, for `compare`

Four texts are extracted under a schema, as ``extraction_tasks`` has them. A generator decodes one after the other, and
forgets all texts before each round; one text warms up. Printed: tokens per second, steps, the time that the
constraint's states take over that of all steps, and the time to compile the schema; and the speed over plain decoding,
the median over repeats with its range.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint
from benchmarks.speed.extraction_tasks import TASKS
from specdec import Generator
from specdec.constraints import Constraint, ConstraintState, JsonSchema, Vocabulary
from specdec.record import StepRecord
from specdec.requests.prompts import encode

PLAIN, DRAFTED = "autoregressive", "auto"


@dataclass
class Clock:
    """The seconds that a constraint's states take."""

    seconds: float = 0.0
    calls: int = 0


_CLOCKS: dict[str, Clock] = {}


class Timed(Constraint):
    """A constraint whose states count their time."""

    inner: JsonSchema
    name: str

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return _TimedState(self.inner.start(vocabulary), _CLOCKS.setdefault(self.name, Clock()))


class _TimedState(ConstraintState):
    def __init__(self, inner: ConstraintState, clock: Clock) -> None:
        self._inner, self._clock = inner, clock

    def _timed(self, call: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        answer = call(*arguments)
        self._clock.seconds += time.perf_counter() - began
        self._clock.calls += 1
        return answer

    @property
    def is_accepting(self) -> bool:
        return bool(self._timed(lambda: self._inner.is_accepting))

    def mask(self) -> torch.Tensor:
        return self._timed(self._inner.mask)

    def advance(self, token: int) -> ConstraintState:
        return _TimedState(self._timed(self._inner.advance, token), self._clock)

    def forced(self) -> Sequence[int]:
        return self._timed(self._inner.forced)


@dataclass
class Round:
    """One round of a contender over all prompts."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    records: list[StepRecord] = field(default_factory=list)


def decode(
    generator: Generator, prompts: Sequence[list[int]], name: str, temperature: float, arguments: argparse.Namespace
) -> Round:
    done, constraint = Round(), Timed(inner=JsonSchema(TASKS[arguments.task].schema), name=name)
    generator.forget()
    for start in range(0, len(prompts), arguments.batch):
        began = time.perf_counter()
        results = generator.generate(
            prompts[start : start + arguments.batch],
            constraint=constraint,
            max_new_tokens=arguments.max_new_tokens,
            temperature=temperature,
            seed=start,
            on_step=done.records.append,
        )
        done.seconds += time.perf_counter() - began
        for result in results:
            if result.error is not None:
                raise result.error
            done.tokens += result.stats.num_tokens
            done.steps += result.stats.steps
    done.step_seconds = sum(record.total_seconds for record in done.records)
    return done


def measure(arguments: argparse.Namespace, temperature: float) -> None:
    folder = checkpoint(arguments)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [[{"role": "user", "content": prompt}] for prompt in TASKS[arguments.task].prompts]
    prompts = [encode(message, tokenizer, len(tokenizer)) for message in messages]
    prompts = (prompts * arguments.batch)[: max(arguments.batch, len(prompts))]
    common = {"backend": arguments.backend, "numerics": arguments.numerics, "max_batch_size": arguments.batch}
    generators = {name: Generator(str(folder), proposer=name, **common) for name in (PLAIN, DRAFTED)}
    rounds: dict[str, list[Round]] = {PLAIN: [], DRAFTED: []}
    shares: dict[str, list[float]] = {PLAIN: [], DRAFTED: []}
    for repeat in range(-1, arguments.repeats):
        for name, generator in generators.items():
            clock = _CLOCKS.setdefault(name, Clock())
            before = clock.seconds
            done = decode(
                generator, prompts if repeat >= 0 else prompts[: arguments.batch], name, temperature, arguments
            )
            if repeat >= 0:
                rounds[name].append(done)
                shares[name].append((clock.seconds - before) / done.step_seconds)
    for name, found in rounds.items():
        speed = statistics.median(each.tokens / each.seconds for each in found)
        print(
            f"| {temperature} | {name} | {speed:.1f} | {found[0].tokens} | {found[0].steps} "
            f"| {1000 * found[0].step_seconds / len(found[0].records):.1f} | {statistics.median(shares[name]):.2%} |"
        )
    ratios = [
        plain.seconds / plain.tokens / (drafted.seconds / drafted.tokens)
        for plain, drafted in zip(rounds[PLAIN], rounds[DRAFTED], strict=True)
    ]
    print(f"| {temperature} | over plain | {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] |")
    if arguments.trace:
        trace(rounds[DRAFTED][-1].records, tokenizer)


def trace(records: Sequence[StepRecord], tokenizer: Any) -> None:
    """Print each step: nodes, accepted tokens, milliseconds by phase, and the text."""
    for record in records:
        phases = " ".join(f"{phase} {1000 * seconds:.1f}" for phase, seconds in record.seconds.items())
        outcome = record.outcomes[0]
        print(f"{record.width:3} {len(outcome.tokens):3}  {phases}  {tokenizer.decode(outcome.tokens)!r}")
        if outcome.finish_reason:
            return


def compilation(arguments: argparse.Namespace) -> float:
    """Milliseconds to compile the schema, once the library has the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint(arguments))
    vocabulary = Vocabulary(tokenizer, len(tokenizer))
    JsonSchema({}).start(vocabulary)
    began = time.perf_counter()
    JsonSchema(TASKS[arguments.task].schema).start(vocabulary).mask()
    return 1000 * (time.perf_counter() - began)


def write(folder: Path, name: str) -> None:
    """Write a task's schema and prompts as files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(TASKS[name].schema), encoding="utf-8")
    lines = [json.dumps({"prompt": prompt, "category": "extraction"}) + "\n" for prompt in TASKS[name].prompts]
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.set_defaults(model="smollm2", dtype="float32")
    parser.add_argument("--task", choices=TASKS, default="order")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--numerics", default="auto")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=300)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="only write the schema and the prompts there")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write, arguments.task)
        return
    torch.set_num_threads(arguments.threads)
    print(f"schema compiled in {compilation(arguments):.1f} ms; {facts()}")
    print("| temperature | proposer | tokens/s | tokens | steps | ms per step | masks |\n|---|---|---|---|---|---|---|")
    for temperature in arguments.temperatures:
        measure(arguments, temperature)


if __name__ == "__main__":
    main()
