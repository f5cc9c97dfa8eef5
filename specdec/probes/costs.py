"""c(T), measured: what a pass over T nodes costs on this machine, for this model."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np

from specdec.costs import Costs
from specdec.target import Pass, Row, Target
from specdec.tree import ROOT, DraftTree

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 128  # tokens
# A strategy that asks for costs while a generator is made gets few figures, soon, of sizes that have been fed by then.
SIZES_AT_LOAD, SECONDS_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD = (1, 6, 33), 0.6, 16, 6
_MOST_ROUNDS = 8  # of passes until they are as fast as they will be
_IN_A_ROW = 6  # passes of one size where passes are filled up: they are of one size mostly, and fastest then
_SPREAD = 1, 8, 32, 128  # measured before the others, where there may not be time for all


def measure_costs(
    target: Target,
    sizes: Sequence[int] = SIZES,
    context: int = CONTEXT,
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
    plain: Target | None = None,
    seconds: float = math.inf,
) -> Costs:
    """Time passes of several sizes behind a context, interleaved; the fastest of each.

    Half of a size's nodes are a chain and the others hang below the root, so that a mask is needed, as for most drafts.
    ``plain`` drives the model as ordinary plain decoding does, where ``target`` has other numerics. First come passes
    that aren't timed, for ``seconds`` of each target at most, until they are as fast as they will be. Then, when half
    of ``seconds`` are over no further size is tried, and when all are no pass is repeated; beyond the largest that was
    tried, or that there was memory for, a pass then counts as many times as dear as it is larger.
    """
    rng = np.random.default_rng(0)
    shapes = target.shapes
    context = min(context, (shapes.max_positions or context * 2) // 2)
    most_deep = (shapes.max_positions or math.inf) - context - 2
    if shapes.takes_trees:
        most_deep = min(most_deep, context)
    tokens = rng.integers(shapes.vocab_size, size=context).tolist()
    trees = {size: _tree(rng, shapes.vocab_size, size, shapes.takes_trees, most_deep) for size in sizes}
    with ExitStack() as opened:
        drafted = opened.enter_context(_Timer.opened(target, tokens, clock))
        ordinary = None if plain is None else opened.enter_context(_Timer.opened(plain, tokens, clock))
        if ordinary is not None:
            ordinary.settle([DraftTree(0)], seconds)
        drafted.settle(trees.values(), seconds)
        times, times_of_plain = _times(drafted, trees, ordinary, repeats, seconds)
    # The first pass of a shape makes room and plans. Other programs delay the rest. A larger one is never cheaper.
    fastest = {size: min(taken[1:] or taken) for size, taken in sorted(times.items())}
    spent = dict(zip(fastest, np.maximum.accumulate(list(fastest.values())).tolist(), strict=True))
    if max(spent) < max(sizes):
        spent[max(sizes)] = spent[max(spent)] * max(sizes) / max(spent)
    own = spent[min(spent)]
    return Costs(
        tuple(spent),
        tuple(spent.values()),
        min(times_of_plain[1:] or times_of_plain or [own]),
        shapes.filled_to,
        shapes.least_width,
    )


@dataclass(frozen=True, slots=True)
class _Timer:
    """Times passes over trees in one row of a target."""

    target: Target
    row: Row
    clock: Callable[[], float]

    @classmethod
    @contextmanager
    def opened(cls, target: Target, tokens: Sequence[int], clock: Callable[[], float]) -> Iterator[Self]:
        """A timer with a row that holds some tokens, and is closed afterwards."""
        row = target.open(2 * len(tokens))
        try:
            target.read_all(row, tokens)
            yield cls(target, row, clock)
        finally:
            target.release(row)

    def seconds(self, tree: DraftTree) -> float:
        """The seconds of a pass."""
        began = self.clock()
        self._run(tree)
        return self.clock() - began

    def settle(self, trees: Iterable[DraftTree], seconds: float) -> None:
        """Run passes over trees until others like them won't be faster, behind contexts of two lengths by turns."""
        length, end, pending = self.row.length, self.clock() + seconds, list(trees)
        for index in range(_MOST_ROUNDS):
            waiting, pending = pending, []
            for tree in waiting:
                if self.clock() > end:
                    break
                try:
                    planned = self._run(tree)
                except RuntimeError:  # torch's, of memory too: the passes that are timed deal with it
                    break
                pending += [] if self.target.is_settled else [tree]
            if not pending:
                break
            if index % 2:
                self.target.rollback(self.row, length)
            else:
                self.target.keep(planned, {self.row: (ROOT,)})
        self.target.rollback(self.row, length)

    def _run(self, tree: DraftTree) -> Pass:
        planned = self.target.compile({self.row: tree})
        self.target.forward(planned)
        return planned


def _times(
    drafted: _Timer, trees: Mapping[int, DraftTree], ordinary: _Timer | None, repeats: int, seconds: float
) -> tuple[dict[int, list[float]], list[float]]:
    """Seconds of each size's passes, and of ordinary plain ones."""
    clock, root = drafted.clock, DraftTree(0)
    start = clock()
    in_a_row = _IN_A_ROW if drafted.target.shapes.filled_to else 1
    times, times_of_plain = dict[int, list[float]](), [] if ordinary is None else [ordinary.seconds(root)]
    for size in sorted(trees, key=lambda size: size not in _SPREAD):
        if len(times) < 3 or clock() - start <= seconds / 2:
            try:
                times[size] = [drafted.seconds(trees[size])]
            except RuntimeError:  # torch's, of memory too
                if not times:
                    raise
                break
    for _ in range(repeats):
        if clock() - start > seconds:
            break
        if ordinary is not None:
            ordinary.seconds(root)
            times_of_plain.append(ordinary.seconds(root))
        drafted.seconds(root)  # the last one, a large pass, has left caches in which the next is slower
        for size in sorted(times):
            for _ in range(in_a_row):
                taken = drafted.seconds(trees[size])
                times[size] += [taken] if drafted.target.is_settled else []
    return times, times_of_plain


def _tree(rng: np.random.Generator, vocab_size: int, size: int, takes_trees: bool, most_deep: float) -> DraftTree:
    tree = DraftTree(0)
    depth = int(min(most_deep, (size - 1) // 2 if takes_trees else size - 1))
    tree.add_chain(ROOT, rng.integers(vocab_size, size=depth).tolist())
    while takes_trees and len(tree) < min(size, vocab_size):
        tree.add(ROOT, int(rng.integers(vocab_size)))
    return tree
