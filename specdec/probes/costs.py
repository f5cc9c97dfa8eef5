"""c(T), measured: what a pass over T nodes costs on this machine, for this model."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from specdec.costs import Costs
from specdec.target import Driver
from specdec.tree import ROOT, DraftTree

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 128  # tokens
# A strategy that asks for costs while a generator is made gets few figures, soon, of sizes that have been fed by then.
SIZES_AT_LOAD, SECONDS_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD = (1, 6, 33), 0.25, 16, 3
_MOST_ROUNDS = 8  # of passes until they are as fast as they will be
_SPREAD = 1, 8, 32, 128  # measured before the others, where there may not be time for all


def measure_costs(
    driver: Driver,
    sizes: Sequence[int] = SIZES,
    context: int = CONTEXT,
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
    plain: Driver | None = None,
    seconds: float = math.inf,
) -> Costs:
    """Time passes of several sizes behind a context, interleaved; medians.

    Half of a size's nodes are a chain and the others hang below the root, so that a mask is needed, as for most drafts.
    ``plain`` drives the model as ordinary plain decoding does, where ``driver`` has other numerics. First come passes
    that aren't timed, for ``seconds`` of each driver at most, until they are as fast as they will be. Then, when half
    of ``seconds`` are over no further size is tried, and when all are no pass is repeated; beyond the largest that was
    tried, or that there was memory for, a pass then counts as many times as dear as it is larger.
    """
    rng = np.random.default_rng(0)
    shapes = driver.shapes
    context = min(context, (shapes.max_positions or context * 2) // 2)
    most_deep = (shapes.max_positions or math.inf) - context - 2
    if shapes.takes_trees:
        most_deep = min(most_deep, context)
    tokens = rng.integers(shapes.vocab_size, size=context).tolist()
    trees = {size: _tree(rng, shapes.vocab_size, size, shapes.takes_trees, most_deep) for size in sizes}
    with ExitStack() as rows:
        for opened in (driver,) if plain is None else (driver, plain):
            rows.callback(opened.release, 0)
            opened.open(tokens, 2 * context)
        if plain is not None:
            _settle(plain, [DraftTree(0)], clock, seconds)
        _settle(driver, trees.values(), clock, seconds)
        times, times_of_plain = _times(driver, trees, plain or driver, repeats, clock, seconds)
    # The first pass of a shape makes room and plans. A larger pass is never cheaper.
    medians = {size: statistics.median(taken[1:] or taken) for size, taken in sorted(times.items())}
    spent = dict(zip(medians, np.maximum.accumulate(list(medians.values())).tolist(), strict=True))
    if max(spent) < max(sizes):
        spent[max(sizes)] = spent[max(spent)] * max(sizes) / max(spent)
    own = spent[min(spent)]
    return Costs(
        tuple(spent),
        tuple(spent.values()),
        own if plain is None else statistics.median(times_of_plain[1:] or times_of_plain),
    )


def _times(
    driver: Driver,
    trees: Mapping[int, DraftTree],
    plain: Driver,
    repeats: int,
    clock: Callable[[], float],
    seconds: float,
) -> tuple[dict[int, list[float]], list[float]]:
    """Seconds of each size's passes, and of ordinary plain ones."""
    start = clock()
    times, times_of_plain = dict[int, list[float]](), [_timed(plain, DraftTree(0), clock, settles=False)]
    for size in sorted(trees, key=lambda size: size not in _SPREAD):
        if len(times) < 3 or clock() - start <= seconds / 2:
            try:
                times[size] = [_timed(driver, trees[size], clock, settles=False)]
            except RuntimeError:  # torch's, of memory too
                if not times:
                    raise
                break
    for _ in range(repeats):
        if clock() - start <= seconds:
            times_of_plain.append(_timed(plain, DraftTree(0), clock))
            for size in sorted(times):
                times[size].append(_timed(driver, trees[size], clock))
    return times, times_of_plain


def _settle(driver: Driver, trees: Iterable[DraftTree], clock: Callable[[], float], seconds: float) -> None:
    """Run passes over trees until others like them won't be faster, behind contexts of two lengths by turns."""
    length, end, pending = driver.lengths[0], clock() + seconds, list(trees)
    for index in range(_MOST_ROUNDS):
        waiting, pending = pending, []
        for tree in waiting:
            if clock() > end:
                break
            try:
                driver.forward([tree])
            except RuntimeError:  # torch's, of memory too: the passes that are timed deal with it
                break
            pending += [] if driver.is_settled else [tree]
        if not pending:
            break
        if index % 2:
            driver.rollback(0, length)
        else:
            driver.keep([(ROOT,)])
    driver.rollback(0, length)


def _timed(driver: Driver, tree: DraftTree, clock: Callable[[], float], settles: bool = True) -> float:
    if settles:  # a large pass leaves caches in which the next one is slower
        driver.forward([DraftTree(tree.tokens[ROOT])])
    began = clock()
    driver.forward([tree])
    return clock() - began


def _tree(rng: np.random.Generator, vocab_size: int, size: int, takes_trees: bool, most_deep: float) -> DraftTree:
    tree = DraftTree(0)
    depth = int(min(most_deep, (size - 1) // 2 if takes_trees else size - 1))
    tree.add_chain(ROOT, rng.integers(vocab_size, size=depth).tolist())
    while takes_trees and len(tree) < min(size, vocab_size):
        tree.add(ROOT, int(rng.integers(vocab_size)))
    return tree
