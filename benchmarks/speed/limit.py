"""Plain steps against the memory's limit: the rate at which they read weights, over the rate of a bare sum.

    python -m benchmarks limit
    python -m benchmarks limit --model smollm2 --dtype float32 --threads 2

A plain step reads the weight of every linear layer once; embeddings are looked up, and norms and the cache are small.
The limit is the rate at which a sum reads a buffer much larger than the caches, with the same number of threads.
"Products alone" are the products of specdec's layers for one row, in sequence. Steps are whole steps, the loop
included, after about 128 tokens: specdec's of a ``Generator`` with packed weights, transformers' of ``generate``.

Each repeat measures all of them briefly, in random order. Times are medians [quartiles]. A model that fits the caches
may be read faster than memory. The bytes of mixtures' experts are not counted, since they aren't linear layers.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import linear

from benchmarks.machine import facts
from benchmarks.models import add_model_options, checkpoint, description, load_model
from benchmarks.peers import models
from benchmarks.speed.overhead import text_of
from benchmarks.summary import Spread
from benchmarks.tables import table
from specdec import Generator
from specdec.errors import SpecdecError
from specdec.models.weights.fbgemm import FBGEMMKernel
from specdec.models.weights.layers import ProductLayer, product_layers
from specdec.models.weights.tensor import PackedWeight

BUFFER = 2**29  # bytes
CONTEXT, STEPS, CALLS = 128, 16, 4  # tokens; and, of one repeat: steps, and sums or rounds of products

Moment = Callable[[], list[float]]  # measures for a moment: seconds of each of its calls or steps


@dataclass(frozen=True)
class Timed:
    """A thing that reads ``num_bytes``, and its measured seconds."""

    name: str
    num_bytes: int
    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        """Bytes per second, median."""
        return self.num_bytes / statistics.median(self.seconds)

    @property
    def maximum_rate(self) -> float:
        """Bytes per second, maximum."""
        return self.num_bytes / min(self.seconds)


class Clock:
    """A streamer for ``generate`` that notes when tokens arrive, the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to record."""


def weight_bytes(layers: Sequence[ProductLayer]) -> int:
    """The bytes of the weights, each counted once, as stored in memory."""
    return sum(layer.weight.numel() * _bytes_of_a_number(layer.weight) for layer in layers)


def _bytes_of_a_number(weight: torch.Tensor) -> int:
    holds_halves = isinstance(weight, PackedWeight) and isinstance(weight.matrix.kernel, FBGEMMKernel)
    return 2 if holds_halves else weight.itemsize


def products(layers: Sequence[ProductLayer]) -> list[Callable[[], torch.Tensor]]:
    """A product with one row per layer; layers that are packed together are multiplied at the first."""
    rows: dict[int, torch.Tensor] = {}  # one object for each width: by it a joined product knows whose parts lie ready
    made: list[Callable[[], torch.Tensor]] = []
    for layer in layers:
        weight, width = layer.weight, layer.weight.shape[0 if layer.is_transposed else 1]
        row = rows.setdefault(width, torch.ones(1, 1, width, dtype=weight.dtype))
        multiply = weight.matrix.multiply if isinstance(weight, PackedWeight) else partial(_stock, layer.matrix)
        made.append(partial(multiply, row, layer.bias))
    return made


def _stock(matrix: torch.Tensor, row: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return linear(row, matrix, bias)


@torch.inference_mode()
def calls(every: Sequence[Callable[[], object]]) -> list[float]:
    """Make some calls in sequence, a few times."""
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        for call in every:
            call()
        seconds.append(time.perf_counter() - began)
    return seconds


def steps(generator: Generator, prompt: list[int]) -> list[float]:
    """Steps after a prompt, without the prompt's own and the first."""
    stream = generator.stream(prompt, max_new_tokens=STEPS + 2, seed=0, eos_token_id=())
    return _between([time.perf_counter() for _ in stream])


def steps_of_transformers(model: Any, prompt: list[int]) -> list[float]:
    """The same with transformers' own loop."""
    clock, ids = Clock(), torch.tensor([prompt])
    options = {"max_new_tokens": STEPS + 2, "do_sample": False, "streamer": clock}
    model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return _between(clock.times[1:])


def _between(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)][1:]


def interleaved(moments: dict[str, Moment], repeats: int) -> dict[str, list[float]]:
    """The seconds of each, after a warm-up."""
    rng, found = random.Random(0), {name: list[float]() for name in moments}
    for repeat in range(-1, repeats):
        for name in rng.sample(list(moments), k=len(moments)):
            seconds = moments[name]()
            if repeat >= 0:
                found[name] += seconds
    return found


def measure(arguments: argparse.Namespace) -> tuple[str, Timed, list[Timed]]:
    """Return a description, the timed bare sum, and everything that is compared with it."""
    model, tokenizer = load_model(arguments)
    theirs, described = models.load(checkpoint(arguments), arguments.dtype), description(model)
    exact = Generator(model, proposer="autoregressive", numerics="exact")  # first: its kernel must be an exact one
    fast = Generator(model, proposer="autoregressive", numerics="fast")
    prompt, layers = text_of(tokenizer, CONTEXT - STEPS // 2), list(product_layers(model))
    buffer = torch.ones(BUFFER // 8, dtype=torch.int64)  # one thread's additions of floats are slower than the memory
    num_bytes, stock = weight_bytes(layers), weight_bytes(list(product_layers(theirs)))
    moments: dict[str, tuple[int, Moment]] = {
        "a bare sum": (buffer.nbytes, partial(calls, [buffer.sum])),
        "products alone": (num_bytes, partial(calls, products(layers))),
        "whole step, fast": (num_bytes, partial(steps, fast, prompt)),
        "whole step, exact": (num_bytes, partial(steps, exact, prompt)),
        "transformers": (stock, partial(steps_of_transformers, theirs, prompt)),
    }
    found = interleaved({name: moment for name, (_, moment) in moments.items()}, arguments.repeats)
    bare, *others = (Timed(name, moments[name][0], seconds) for name, seconds in found.items())
    return f"{described}; {len(layers)} linear layers; weights: {fast.weights}", bare, others


def report(bare: Timed, others: Sequence[Timed]) -> str:
    """The limit in a sentence, and a table."""
    rates = f"{bare.maximum_rate / 1e9:.1f} GB/s at most, {bare.rate / 1e9:.1f} in the median"
    said = f"A sum over {bare.num_bytes / 2**20:.0f} MiB reads {rates}."
    heading = ["", "MB of weights", "ms", "GB/s", "of the maximum rate", "of the median rate"]
    lines = (
        [
            each.name,
            f"{each.num_bytes / 1e6:.1f}",
            str(Spread.of([1e3 * spent for spent in each.seconds])),
            f"{each.rate / 1e9:.1f}",
            f"{each.rate / bare.maximum_rate:.0%}",
            f"{each.rate / bare.rate:.0%}",
        ]
        for each in others
    )
    return f"{said}\n\n{table(heading, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    try:
        described, bare, others = measure(arguments)
    except SpecdecError as error:
        raise SystemExit(str(error)) from None
    print(f"{facts()}\n\n{described}\n\n{report(bare, others)}")


if __name__ == "__main__":
    main()
