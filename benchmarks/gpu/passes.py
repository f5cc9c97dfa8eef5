"""Passes on a device: their time by nodes and context, the time of a long prompt, and the kernels of a step."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.card import reading_ms
from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.profiling import profiled
from benchmarks.gpu.speed import loaded
from specdec import Generator
from specdec.runtime.probes.costs import measure_costs


@dataclass(frozen=True)
class Measured:
    """What is measured of passes.

    Attributes:
        nodes: of a pass.
        contexts: tokens before it; a model takes half of its positions at most.
        prompts: tokens of prompts that are read.
        seconds: for the passes of one context.
    """

    nodes: Sequence[int]
    contexts: Sequence[int]
    prompts: Sequence[int] = ()
    seconds: float = 4.0


def passes(model: Any, ways: Sequence[str], measured: Measured) -> Callable[[Report, Findings], None]:
    """Return the part that times passes by each way, a backend and its numerics, in turn."""

    def run(report: Report, found: Findings) -> None:
        found["model"] = f"{model.num_parameters() / 1e6:.0f} million parameters, {model.dtype}"
        found["reading the weights, ms"] = reading_ms(report, model)
        with ExitStack() as stack:
            generators: dict[str, Generator] = {}
            for way in ways:
                report.attempt(found, f"{way} loads", partial(loaded, stack, generators, model, way))
            for context in measured.contexts:
                for way, generator in generators.items():
                    held = min(context, generator.shapes.context_length // 2)  # which costs are measured after
                    name = f"{way}, ms by nodes after {held} tokens"
                    report.attempt(found, name, partial(times, generator, measured, context))
            for way, generator in generators.items():
                for length in measured.prompts:
                    name = f"{way}, ms of a prompt of {length} tokens"
                    report.attempt(found, name, partial(prompt_ms, generator, length))
                for strategy in ("autoregressive", "auto"):
                    steps = partial(profiled, generator, strategy, _tokens(generator, 32, 0))
                    report.attempt(found, f"{way}, a step of {strategy}", steps)

    return run


def times(generator: Generator, measured: Measured, context: int) -> dict[str, float]:
    """Milliseconds of a pass by its number of nodes, layout included, until its argmax is known."""
    with closing(generator.open_target()) as target:
        costs = measure_costs(target, measured.nodes, context=context, repeats=7, seconds=measured.seconds)
    return {str(size): round(1e3 * seconds, 3) for size, seconds in zip(costs.sizes, costs.seconds, strict=True)}


def prompt_ms(generator: Generator, length: int) -> list[float]:
    """Milliseconds until the first token of a prompt: of the first prompt, and of two others."""
    taken = []
    for seed in range(3):
        prompt = _tokens(generator, length, seed)
        began = time.perf_counter()
        generator.generate(prompt, proposer="autoregressive", max_new_tokens=1)
        taken.append(round(1e3 * (time.perf_counter() - began), 1))
    return taken


def _tokens(generator: Generator, length: int, seed: int) -> list[int]:
    vocab = generator.shapes.vocab_size
    return np.random.default_rng(seed).integers(vocab, size=length).tolist()
