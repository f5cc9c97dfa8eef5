"""The measurement: every strategy on every prompt, interleaved in random order, and what each run came to."""

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from specdec.decoding.result import Result
from specdec.errors import RequestError
from specdec.generator import Generator

WARM = " (warm)"  # behind the name of a strategy that keeps what it remembers from one repeat to the next

Promise = Literal["tokens", "law", "nothing"]
Cell = tuple[str, int, int]  # strategy, prompt, repeat
Decode = Callable[[int, int], Result]  # (prompt, seed)


class Plan(BaseModel):
    """The full description of a comparison: a run file's first line.

    Runs belong together if their plans are equal but for ``repeats``, and for ``inexact``, whose wording comes
    from a measurement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategies: dict[str, str]  # by name, what each was made of
    baseline: str  # ordinary plain decoding's name among them: speed-ups are over it
    reference: str  # the name of plain decoding in exact numerics, where any strategy has those; else the baseline's
    verifiers: dict[str, str]
    numerics: dict[str, Literal["exact", "fast"]]
    inexact: dict[str, str]  # by strategy: why its numerics aren't bit-exact, "" where they are
    promises: dict[str, Promise]  # by strategy: plain decoding's tokens, or their distribution alone, or neither
    settings: dict[str, Any]
    seed: int
    repeats: int
    prompts: tuple[tuple[str, str, tuple[int, ...]], ...]  # category, name, token ids
    model: dict[str, str]
    machine: dict[str, str]

    @property
    def plain(self) -> tuple[str, str]:
        """The names that plain decoding has: one twice where its numerics are the strategies'."""
        return self.baseline, self.reference

    @property
    def warm(self) -> list[str]:
        """The names of strategies that keep what they remember."""
        return [name for name in self.strategies if name.endswith(WARM)]

    def reference_of(self, strategy: str) -> str:
        """The plain decoding that a strategy's texts are held against: the one in its own numerics.

        In others a tie of two logits may fall the other way, which is no fault of the strategy's.
        """
        return self.baseline if self.inexact[strategy] else self.reference


class Run(BaseModel):
    """One prompt, decoded once by one strategy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: str
    prompt: int
    repeat: int
    seconds: float
    tokens: tuple[int, ...]
    accepted_lengths: tuple[int, ...]
    num_nodes: int
    phases: dict[str, float]  # seconds
    cache_bytes: int
    sources: dict[str, dict[int, tuple[int, int]]] = {}  # of a merge: see ``Stats``
    calibration: dict[str, tuple[tuple[int, float, int], ...]] = {}

    @property
    def cell(self) -> Cell:
        """The place of the run among the planned ones: strategy, prompt and repeat."""
        return self.strategy, self.prompt, self.repeat


def decoder(generator: Generator, prompts: Sequence[Sequence[int]], settings: dict[str, Any]) -> Decode:
    """A generator as the measurement calls it."""

    def decode(prompt: int, seed: int) -> Result:
        result: Result = generator.generate(list(prompts[prompt]), seed=seed, **settings)
        return result

    return decode


def measure(
    plan: Plan,
    decoders: dict[str, Decode],
    done: Collection[Cell] = (),
    clock: Callable[[], float] = time.perf_counter,
    forget: Callable[[], None] | None = None,
) -> Iterator[Run]:
    """Decode whatever isn't done yet, and yield each run as it ends.

    Within a repeat the prompts come in random order, and for each prompt all strategies, in random order, one right
    after another: what disturbs the machine for a while disturbs them alike. Every strategy first decodes a prompt that
    isn't counted. ``forget`` is called before each repeat, and so behind that prompt: a strategy that remembered the
    last one's texts would find its own answers. Those that keep what they remember, ``plan.warm``, first decode every
    prompt once more without being counted, with a seed that no repeat has: the first repeat is as warm as the others.
    The order is a function of the plan's seed.

    Raises:
        RequestError: naming strategy and prompt, where a run fails.
    """
    rng = np.random.default_rng(plan.seed)
    for name in plan.strategies:
        _attempt(plan, decoders, name, prompt=0, seed=plan.seed)
    for name in plan.warm:
        cells = itertools.product((name,), range(len(plan.prompts)), range(plan.repeats))
        if any(cell not in done for cell in cells):
            for prompt in range(len(plan.prompts)):
                _attempt(plan, decoders, name, prompt, seed=plan.seed + plan.repeats)
    for repeat in range(plan.repeats):
        if forget is not None:
            forget()
        for prompt in rng.permutation(len(plan.prompts)).tolist():
            for name in rng.permutation(list(plan.strategies)).tolist():
                if (name, prompt, repeat) not in done:
                    began = clock()
                    result = _attempt(plan, decoders, name, prompt, plan.seed + repeat)
                    yield _run(name, prompt, repeat, clock() - began, result)


def _attempt(plan: Plan, decoders: dict[str, Decode], name: str, prompt: int, seed: int) -> Result:
    try:
        return decoders[name](prompt, seed)
    except Exception as error:  # a third party's code
        raise RequestError(f"strategy {name!r} failed on prompt {plan.prompts[prompt][1]!r}: {error}") from error


def _run(name: str, prompt: int, repeat: int, seconds: float, result: Result) -> Run:
    return Run(
        strategy=name,
        prompt=prompt,
        repeat=repeat,
        seconds=seconds,
        tokens=result.token_ids,
        accepted_lengths=tuple(result.stats.accepted_lengths),
        num_nodes=result.stats.num_nodes,
        phases=result.stats.seconds,
        cache_bytes=result.stats.peak_cache_bytes,
        sources={
            name: {depth: (named, right) for depth, (named, right) in by_depth.items()}
            for name, by_depth in result.stats.sources.items()
        },
        calibration={
            name: tuple((int(number), chances, int(right)) for number, chances, right in bins)
            for name, bins in result.stats.calibration.items()
        },
    )
