"""c(T): what a pass over T nodes costs, measured on this machine, for this model."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec.tree import ROOT, DraftTree

if TYPE_CHECKING:  # a driver drives a backend, and a backend may know its costs
    from specdec.driver import Driver

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 128  # tokens
SECONDS_AT_LOAD = 1.0
_FEWEST_SIZES = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass, by its number of nodes, ascending; ``plain`` is an ordinary plain step's."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    plain: float

    def at(self, num_nodes: float) -> float:
        """Seconds of a pass over so many nodes: linear between what was measured, and on from the last two."""
        if num_nodes > self.sizes[-1]:
            (before, last), (cost_before, cost) = self.sizes[-2:], self.seconds[-2:]
            return cost + (num_nodes - last) * max(0.0, cost - cost_before) / (last - before)
        return float(np.interp(num_nodes, self.sizes, self.seconds))

    def relative_at(self, num_nodes: float) -> float:
        """c(T) of so many nodes."""
        return self.at(num_nodes) / self.plain

    @property
    def relative(self) -> tuple[float, ...]:
        """c(T): over the cost of an ordinary plain step."""
        return tuple(seconds / self.plain for seconds in self.seconds)


def measure_costs(
    driver: "Driver",
    sizes: Sequence[int] = SIZES,
    context: int = CONTEXT,
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
    plain: "Driver | None" = None,
    seconds: float = math.inf,
) -> Costs:
    """Time passes of several sizes behind a context, interleaved; medians.

    Half of a size's nodes are a chain and the others hang below the root, so that a mask is needed, as for most drafts.
    ``plain`` drives the model as ordinary plain decoding does, where ``driver`` has other numerics. When ``seconds``
    are over, or half of them before all sizes were tried, no larger size is tried and no pass repeated.
    """
    rng = np.random.default_rng(0)
    context = min(context, (driver.shapes.max_positions or context * 2) // 2)
    tokens = rng.integers(driver.shapes.vocab_size, size=context).tolist()
    drivers = [driver] if plain is None else [driver, plain]
    for opened in drivers:
        opened.open(tokens, 2 * context)
    vocab_size, takes_trees = driver.shapes.vocab_size, driver.shapes.takes_trees
    passes = [(other, DraftTree(0)) for other in drivers[1:]]
    passes += [(driver, _tree(rng, vocab_size, size, takes_trees, context)) for size in sizes]
    times: list[list[float]] = []
    start = clock()
    for driven, tree in passes:
        if len(times) >= len(drivers) - 1 + _FEWEST_SIZES and clock() - start > seconds / 2:
            break
        times.append([_timed(driven, tree, clock)])
    for repeat in range(repeats):
        if repeat and clock() - start > seconds:
            break
        for (driven, tree), taken in zip(passes, times, strict=False):
            taken.append(_timed(driven, tree, clock))
    for opened in drivers:
        opened.release(0)
    medians = [statistics.median(taken[1:]) for taken in times]  # the first pass of a shape makes room and plans
    spent = np.maximum.accumulate(medians[len(drivers) - 1 :]).tolist()  # a larger pass is never cheaper
    return Costs(tuple(sizes[: len(spent)]), tuple(spent), spent[0] if plain is None else medians[0])


def _timed(driver: "Driver", tree: DraftTree, clock: Callable[[], float]) -> float:
    driver.forward([DraftTree(tree.tokens[ROOT])])  # a large pass leaves caches in which the next one is slower
    began = clock()
    driver.forward([tree])
    return clock() - began


def _tree(rng: np.random.Generator, vocab_size: int, size: int, takes_trees: bool, most_deep: int) -> DraftTree:
    tree = DraftTree(0)
    depth = min(most_deep, (size - 1) // 2 if takes_trees else size - 1)
    tree.add_chain(ROOT, rng.integers(vocab_size, size=depth).tolist())
    while takes_trees and len(tree) < min(size, vocab_size):
        tree.add(ROOT, int(rng.integers(vocab_size)))
    return tree
