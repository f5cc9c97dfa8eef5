"""The measurement: every strategy decodes every prompt, interleaved in random order; each run is recorded."""

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from specdec.decoding.result import Result
from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.sampling.randomness import seed_of_sample

WARM = " (warm)"  # suffix to the name of a strategy that keeps its memory between repeats

Promise = Literal["tokens", "distribution", "nothing"]
RunKey = tuple[str, int, int]  # strategy, prompt, repeat
Decoder = Callable[[int, int], Result]  # (prompt, seed)


class ComparisonPlan(BaseModel):
    """The full description of a comparison; the first line of a run file.

    Runs belong to one comparison if their plans are equal, ``repeats`` and ``inexact`` aside: the latter quotes a
    measurement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategies: dict[str, str]  # by name: the proposer's options
    baseline: str  # plain decoding in fast numerics, over which speed-ups are taken
    reference: str  # plain decoding in exact numerics if any strategy has those, else the baseline
    verifiers: dict[str, str]
    numerics: dict[str, Literal["exact", "fast"]]
    inexact: dict[str, str]  # by strategy: why its numerics aren't bit-exact, "" if they are
    promises: dict[str, Promise]  # by strategy: plain decoding's tokens, its distribution only, or neither
    settings: dict[str, Any]
    seed: int
    repeats: int
    prompts: tuple[tuple[str, str, tuple[int, ...]], ...]  # category, name, token ids
    model: dict[str, str]
    machine: dict[str, str]

    @property
    def plain(self) -> tuple[str, str]:
        """The names of plain decoding, baseline and reference; they may be equal."""
        return self.baseline, self.reference

    @property
    def warm(self) -> list[str]:
        """The names of strategies that keep their memory between repeats."""
        return [name for name in self.strategies if name.endswith(WARM)]

    @property
    def num_runs(self) -> int:
        """The number of runs: each strategy decodes each prompt in each repeat."""
        return len(self.strategies) * len(self.prompts) * self.repeats

    def reference_of(self, strategy: str) -> str:
        """The plain decoding with which a strategy's texts are compared: the one in the strategy's numerics.

        In other numerics two tied logits may rank differently, which is no fault of the strategy.
        """
        return self.baseline if self.inexact[strategy] else self.reference


class Run(BaseModel):
    """One prompt decoded once by one strategy."""

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
    sources: dict[str, dict[int, tuple[int, int]]] = {}  # for a merge, see ``Stats``
    calibration: dict[str, tuple[tuple[int, float, int], ...]] = {}

    @property
    def key(self) -> RunKey:
        """Strategy, prompt and repeat, which identify a run of the plan."""
        return self.strategy, self.prompt, self.repeat


def decoder(
    generator: Generator, prompts: Sequence[Sequence[int]], settings: dict[str, Any], ends: Mapping[int, Sequence[int]]
) -> Decoder:
    """Wrap a generator for ``measure``; ``ends`` has the ends of text of prompts that are chats."""

    def decode(prompt: int, seed: int) -> Result:
        own = {"eos_token_id": ends[prompt]} if prompt in ends else {}
        result: Result = generator.generate(list(prompts[prompt]), seed=seed, **(own | settings))
        return result

    return decode


def measure(
    plan: ComparisonPlan,
    decoders: dict[str, Decoder],
    done: Collection[RunKey] = (),
    clock: Callable[[], float] = time.perf_counter,
    forget: Callable[[], None] | None = None,
) -> Iterator[Run]:
    """Run the plan, ``done`` aside, and yield each run as it ends.

    Each repeat shuffles the prompts, and for each prompt the strategies, which run one after another: a disturbance of
    the machine affects all of them. Every strategy first decodes one prompt, uncounted. ``forget`` is called before
    each repeat, so that no strategy finds its own text of the last repeat in its memory. Strategies that keep their
    memory, ``plan.warm``, first decode every prompt, uncounted, with a seed that no repeat has, so that the first
    repeat is as warm as the others. The plan's seed determines the order.

    Raises:
        RequestError: a run failed; the message has its strategy and prompt.
    """
    rng = np.random.default_rng(plan.seed)
    for name in plan.strategies:
        _attempt(plan, decoders, name, prompt=0, seed=plan.seed)
    for name in plan.warm:
        keys = itertools.product((name,), range(len(plan.prompts)), range(plan.repeats))
        if any(key not in done for key in keys):
            for prompt in range(len(plan.prompts)):
                _attempt(plan, decoders, name, prompt, seed_of_sample(plan.seed, plan.repeats))
    for repeat in range(plan.repeats):
        if forget is not None:
            forget()
        for prompt in rng.permutation(len(plan.prompts)).tolist():
            for name in rng.permutation(list(plan.strategies)).tolist():
                if (name, prompt, repeat) not in done:
                    began = clock()
                    result = _attempt(plan, decoders, name, prompt, seed_of_sample(plan.seed, repeat))
                    yield _run(name, prompt, repeat, clock() - began, result)


def _attempt(plan: ComparisonPlan, decoders: dict[str, Decoder], name: str, prompt: int, seed: int) -> Result:
    try:
        return decoders[name](prompt, seed)
    except Exception as error:  # third-party code
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
            name: {depth: (proposed, accepted) for depth, (proposed, accepted) in by_depth.items()}
            for name, by_depth in result.stats.sources.items()
        },
        calibration={
            name: tuple((int(number), probs, int(accepted)) for number, probs, accepted in bins)
            for name, bins in result.stats.calibration.items()
        },
    )
