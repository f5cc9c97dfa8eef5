"""Speed on a device: contenders in turn on each prompt."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.texts import generated
from specdec import Generator
from specdec.numerics import checked_mode

STRATEGIES = "autoregressive", "suffix", "lookahead:N=5,W=15,G=15", "auto"
HEADS = "eagle3", "auto+eagle3"
BATCHED = "autoregressive", "auto"
WARM_UP = 48  # tokens of each contender before any is timed


@dataclass(frozen=True)
class DecodedText:
    """One prompt's text, its steps (None if unknown), and the seconds of each phase."""

    tokens: tuple[int, ...]
    steps: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


Contender = Callable[[list[int], int], DecodedText]


def contest(
    model: Any,
    prompts: Sequence[list[int]],
    num_tokens: int,
    head: str | None = None,
    ways: Sequence[str] = ("static auto", "fused auto"),
) -> Callable[[Report, Findings], None]:
    """Return the part that times all contenders on each prompt in turn.

    Args:
        model: on the device.
        prompts: token ids.
        num_tokens: of each text.
        head: folder of an EAGLE-3 head that drafts for the model, alone and merged.
        ways: backends and numerics to compare.
    """
    strategies = {name: name for name in STRATEGIES} | ({name: f"{name}:head={head}" for name in HEADS} if head else {})

    def run(report: Report, found: Findings) -> None:
        found["model"] = f"{type(model).__name__}, {model.num_parameters() / 1e6:.0f} million, {model.dtype}"
        with ExitStack() as stack:
            # On CUDA transformers compiles the passes of a static cache.
            contenders: dict[str, Contender] = {
                "transformers": _transformers(model),
                "transformers, static cache": _transformers(model, cache_implementation="static"),
            }
            for way in ways:
                generators: dict[str, Generator] = {}
                if not report.attempt(found, f"{way} loads", partial(loaded, stack, generators, model, way)):
                    continue
                generator = generators[way]
                contenders |= {f"{way} {name}": _specdec(generator, spec) for name, spec in strategies.items()}
            _race(report, found, contenders, prompts, num_tokens)

    return run


def batches(
    model: Any, prompts: Sequence[list[int]], num_tokens: int, ways: Sequence[str], sizes: Sequence[int]
) -> Callable[[Report, Findings], None]:
    """Return the part that times batches of the prompts, repeated up to ``sizes``; the others are ``contest``'s."""

    def run(report: Report, found: Findings) -> None:
        for way in ways:
            with ExitStack() as stack:
                generators: dict[str, Generator] = {}
                if report.attempt(found, f"{way} loads", partial(loaded, stack, generators, model, way, max(sizes))):
                    for size, strategy in product(sizes, BATCHED):
                        of_batch = [prompts[number % len(prompts)] for number in range(size)]
                        decode = partial(_of_batch, generators[way], of_batch, num_tokens, strategy)
                        report.attempt(found, f"{way} {strategy}, {size} texts", decode)

    return run


def _of_batch(generator: Generator, prompts: list[list[int]], num_tokens: int, strategy: str) -> str:
    """Decode a batch for the second time; return its speed."""
    settings: dict[str, Any] = {"proposer": strategy, "eos_token_id": []}
    generator.generate(prompts, max_new_tokens=WARM_UP, **settings)
    _wait()
    began = time.perf_counter()
    results = generator.generate(prompts, max_new_tokens=num_tokens, **settings)
    _wait()
    seconds, num_made = time.perf_counter() - began, sum(len(result.token_ids) for result in results)
    num_steps = sum(result.stats.steps for result in results)
    return f"{num_made / seconds:.0f} tokens/s, {num_made / num_steps:.2f} tokens/step"


def loaded(stack: ExitStack, generators: dict[str, Generator], model: Any, way: str, max_batch_size: int = 8) -> str:
    """Add a generator that decodes by a way, and return how it drives the model."""
    backend, numerics = way.split()
    began = time.perf_counter()
    generator = Generator(
        model,
        proposer="autoregressive",
        numerics=checked_mode(numerics),
        backend=backend,
        max_batch_size=max_batch_size,
    )
    generators[way] = stack.enter_context(generator)
    rows = f"rows in multiples of {generator.shapes.row_multiple}"
    return f"{time.perf_counter() - began:.1f} s; {generator.mask!r}; {generator.numerics}; {rows}"


def _transformers(model: Any, **options: Any) -> Contender:
    return lambda prompt, num_tokens: DecodedText(generated(model, prompt, num_tokens, **options), num_tokens)


def _specdec(generator: Generator, strategy: str) -> Contender:
    def decode(prompt: list[int], num_tokens: int) -> DecodedText:
        result = generator.generate(prompt, proposer=strategy, max_new_tokens=num_tokens, eos_token_id=[])
        return DecodedText(result.token_ids, result.stats.steps, result.stats.seconds)

    return decode


def _race(
    report: Report, found: Findings, contenders: dict[str, Contender], prompts: Sequence[list[int]], num_tokens: int
) -> None:
    warm: Findings = {}
    found["warm-up seconds"] = warm
    for name in list(contenders):
        if not report.attempt(warm, name, partial(_warm_up, contenders[name], prompts)):
            del contenders[name]
    runs: dict[str, list[tuple[DecodedText, float]]] = {name: [] for name in contenders}
    rng = random.Random(0)
    for number, prompt in enumerate(prompts, 1):
        if report.left <= 0:
            break
        for name in rng.sample(list(contenders), k=len(contenders)):
            try:
                runs[name].append(_timed(contenders[name], prompt, num_tokens))
            except Exception as error:  # the others go on
                warm[name] = report.failure(name, error)
                del contenders[name], runs[name]
        found["prompts done"] = f"{number} of {len(prompts)}, {num_tokens} tokens each"
        found["contenders"] = {name: _summary(each, runs) for name, each in runs.items()}
        report.write()


def _warm_up(contender: Contender, prompts: Sequence[list[int]]) -> float:
    return round(_timed(contender, prompts[-1], WARM_UP)[1], 2)


def _timed(contender: Contender, prompt: list[int], num_tokens: int) -> tuple[DecodedText, float]:
    _wait()
    began = time.perf_counter()
    answer = contender(prompt, num_tokens)
    _wait()
    return answer, time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _summary(own: list[tuple[DecodedText, float]], runs: Mapping[str, list[tuple[DecodedText, float]]]) -> Findings:
    """Medians over prompts, and how many texts are those of plain decoding."""
    made: Findings = {
        "tokens/s": round(statistics.median(len(answer.tokens) / seconds for answer, seconds in own), 1),
        "tokens/step": round(statistics.median(len(answer.tokens) / (answer.steps or 1) for answer, _ in own), 2),
        "ms/step": round(statistics.median(1e3 * seconds / (answer.steps or 1) for answer, seconds in own), 3),
        "by prompt, tokens/s": [round(len(answer.tokens) / seconds, 1) for answer, seconds in own],
    }
    phases = {name for answer, _ in own for name in answer.phases}
    if phases:
        steps = sum(answer.steps or 0 for answer, _ in own)
        total = {phase: sum(answer.phases[phase] for answer, _ in own) for phase in sorted(phases)}
        made["ms/step by phase"] = {phase: round(1e3 * seconds / steps, 3) for phase, seconds in total.items()}
    for base in (name for name in runs if name == "transformers" or name.endswith(" autoregressive")):
        others = runs.get(base)
        if others and len(others) == len(own):
            same = sum(answer.tokens == other.tokens for (answer, _), (other, _) in zip(own, others, strict=True))
            ratios = [other / seconds for (_, seconds), (_, other) in zip(own, others, strict=True)]
            made[f"over {base}"] = f"{statistics.median(ratios):.2f} times, {same} of {len(own)} texts equal"
    return made
