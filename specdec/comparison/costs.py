"""c(T): what a pass over T nodes costs, measured on this machine, for this model."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specdec.driver import Driver
from specdec.tree import ROOT, DraftTree

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 128  # tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass, by its number of nodes, ascending."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, num_nodes: float) -> float:
        """Seconds of a pass over so many nodes: linear between what was measured, and on from the last two."""
        if num_nodes > self.sizes[-1]:
            (before, last), (cost_before, cost) = self.sizes[-2:], self.seconds[-2:]
            return cost + (num_nodes - last) * max(0.0, cost - cost_before) / (last - before)
        return float(np.interp(num_nodes, self.sizes, self.seconds))

    @property
    def relative(self) -> tuple[float, ...]:
        """c(T): over the cost of one node."""
        return tuple(seconds / self.seconds[0] for seconds in self.seconds)


def measure_costs(
    driver: Driver,
    sizes: Sequence[int] = SIZES,
    context: int = CONTEXT,
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Time passes of several sizes behind a context, interleaved; medians.

    Half of a size's nodes are a chain and the others hang below the root, so that a mask is needed, as for most drafts.
    """
    rng = np.random.default_rng(0)
    context = min(context, (driver.shapes.max_positions or context * 2) // 2)
    tokens = rng.integers(driver.shapes.vocab_size, size=context).tolist()
    driver.open(tokens, 2 * context)
    trees = {size: _tree(rng, driver.shapes.vocab_size, size, driver.shapes.takes_trees, context) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(repeats + 1):
        for size, tree in trees.items():
            began = clock()
            driver.forward([tree])
            if repeat:  # the first pass of a shape makes room and plans
                times[size].append(clock() - began)
    driver.release(0)
    medians = [statistics.median(times[size]) for size in sizes]
    return Costs(tuple(sizes), tuple(np.maximum.accumulate(medians).tolist()))  # a larger pass is never cheaper


def _tree(rng: np.random.Generator, vocab_size: int, size: int, takes_trees: bool, most_deep: int) -> DraftTree:
    tree = DraftTree(0)
    depth = min(most_deep, (size - 1) // 2 if takes_trees else size - 1)
    tree.add_chain(ROOT, rng.integers(vocab_size, size=depth).tolist())
    while takes_trees and len(tree) < min(size, vocab_size):
        tree.add(ROOT, int(rng.integers(vocab_size)))
    return tree
