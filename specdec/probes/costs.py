"""c(T), measured: what a pass over T nodes costs on this machine, for this model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from specdec.costs import Costs
from specdec.machine.timing import Timer, undisturbed
from specdec.target import CacheRow, PlannedPass, Target
from specdec.tree import ROOT, DraftTree

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 128  # tokens
# A strategy that asks for costs while a generator is made gets few figures, soon, of sizes that have been fed by then.
SIZES_AT_LOAD, SECONDS_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD = (1, 6, 33), 0.6, 16, 6
_MOST_ROUNDS = 8  # of passes until they are as fast as they will be
_IN_A_ROW = 3  # passes of one size where passes are filled up: they are of one size mostly, and fastest then
_SPREAD = 1, 8, 32, 128  # measured before the others, where there may not be time for all
_ORDINARY = 0  # the key of ordinary plain passes among those of sizes
_LEAST_ROUNDS = 3  # undisturbed ones that serve
_STRETCHES, _AGREEMENT = 3, 1.25  # of the rounds, and how far the largest of their ratios may exceed the least


def measure_costs(
    target: Target,
    sizes: Sequence[int] = SIZES,
    context: int = CONTEXT,
    repeats: int = 9,
    timer: Timer | None = None,
    plain: Target | None = None,
    seconds: float = math.inf,
) -> Costs:
    """Time passes of several sizes after a context, in rounds of one pass of each size and an ordinary plain one.

    Half of a size's nodes are a chain and the others hang below the root, so that a mask is needed, as for most drafts.
    A size costs what the plain pass of the same rounds does, times their ratio: other programs slow down both.
    ``plain`` drives the model as ordinary plain decoding does, where ``target`` has other numerics.

    First come passes that aren't timed, for ``seconds`` of each target at most, until they are as fast as they will be.
    Then, when half of ``seconds`` are over no further size is tried, and when all are no round begins but the first
    three, for which there is as much again. Beyond the largest that was tried, or that there was memory for, a pass
    counts as many times as dear as it is larger.
    """
    rng, timer = np.random.default_rng(0), timer or Timer()
    shapes = target.shapes
    context = min(context, (shapes.max_positions or context * 2) // 2)
    most_deep = (shapes.max_positions or math.inf) - context - 2
    if shapes.takes_trees:
        most_deep = min(most_deep, context)
    tokens = rng.integers(shapes.vocab_size, size=context).tolist()
    trees = {size: _tree(rng, shapes.vocab_size, size, shapes.takes_trees, most_deep) for size in sizes}
    with ExitStack() as opened:
        drafted = opened.enter_context(_Driver.opened(target, tokens, timer))
        ordinary = None if plain is None else opened.enter_context(_Driver.opened(plain, tokens, timer))
        if ordinary is not None:
            ordinary.settle([DraftTree(0)], seconds)
        drafted.settle(trees.values(), seconds)
        passes = _measured(drafted, trees, ordinary, repeats, seconds)
    spent, of_plain, is_clear = passes.costs()
    if max(spent) < max(sizes):
        spent[max(sizes)] = spent[max(spent)] * max(sizes) / max(spent)
    return Costs(
        tuple(spent),
        tuple(np.maximum.accumulate(list(spent.values())).tolist()),  # a larger pass is never cheaper
        of_plain,
        shapes.filled_to,
        shapes.least_width,
        is_clear,
    )


@dataclass(frozen=True, slots=True)
class _Driver:
    """Runs and times passes over trees in one row of a target."""

    target: Target
    row: CacheRow
    timer: Timer

    @classmethod
    @contextmanager
    def opened(cls, target: Target, tokens: Sequence[int], timer: Timer) -> Iterator[Self]:
        """Open a row that holds some tokens; it is closed afterwards."""
        row = target.open(2 * len(tokens))
        try:
            target.read_all(row, tokens)
            yield cls(target, row, timer)
        finally:
            target.release(row)

    def time(self, tree: DraftTree) -> tuple[float, bool]:
        """Return the seconds of a pass, and whether it was undisturbed."""
        return self.timer.time(lambda: self._run(tree))

    def settle(self, trees: Iterable[DraftTree], seconds: float) -> None:
        """Run passes over trees until the backend is warm, after contexts of two alternating lengths."""
        length, end, pending = self.row.length, self.timer.clock() + seconds, list(trees)
        for index in range(_MOST_ROUNDS):
            waiting, pending = pending, []
            for tree in waiting:
                if self.timer.clock() > end:
                    break
                try:
                    planned = self._run(tree)
                except RuntimeError:  # torch's, of memory too: the passes that are timed deal with it
                    break
                pending += [] if self.target.is_warm else [tree]
            if not pending:
                break
            if index % 2:
                self.target.rollback(self.row, length)
            else:
                self.target.keep(planned, {self.row: (ROOT,)})
        self.target.rollback(self.row, length)

    def _run(self, tree: DraftTree) -> PlannedPass:
        planned = self.target.compile({self.row: tree})
        output = self.target.forward(planned)
        if self.target.shapes.device.type != "cpu":  # which only queues the pass: wait as a step does
            output.rows[self.row].is_finite(ROOT)
        return planned


@dataclass(frozen=True, slots=True)
class _Passes:
    """The seconds of passes by size, of ordinary plain ones by the key ``_ORDINARY``.

    Attributes:
        first: of each one's first pass, which makes room and plans.
        rounds: of those that followed, without sizes whose passes weren't as fast yet as they will be.
        is_quiet: True if no round was disturbed; disturbed ones are left out where others suffice.
    """

    first: Mapping[int, float]
    rounds: Sequence[Mapping[int, float]]
    is_quiet: bool

    def costs(self) -> tuple[dict[int, float], float, bool]:
        """Return the seconds by size, those of a plain pass, and whether the rounds agree about them.

        The rounds are cut into three stretches. In each, other programs are ruled out by the minima. Their ratio is
        wrong where the machine's speed changes within the stretch, so the median of the stretches' ratios counts.
        """
        sizes = sorted(size for size in self.first if size != _ORDINARY)
        base = _ORDINARY if _ORDINARY in self.first else sizes[0]
        num = _STRETCHES if len(self.rounds) >= _STRETCHES else 1
        stretches = [_least(self.rounds[places[0] : places[-1] + 1]) for places in _split(len(self.rounds), num)]
        plain = min((least[base] for least in stretches if base in least), default=self.first[base])
        spent, is_clear = dict[int, float](), self.is_quiet and len(stretches) == _STRETCHES
        for size in sizes:
            pairs = [(least[size], least[base]) for least in stretches if size in least and base in least]
            pairs = sorted(pairs or [(self.first[size], self.first[base])], key=lambda pair: pair[0] / pair[1])
            taken, of_base = pairs[len(pairs) // 2]
            spent[size] = taken * (plain / of_base)
            is_clear = is_clear and pairs[-1][0] / pairs[-1][1] <= _AGREEMENT * pairs[0][0] / pairs[0][1]
        return spent, plain, is_clear


def _split(length: int, num: int) -> list[range]:
    """Divide ``length`` rounds into ``num`` stretches of nearly equal length."""
    ends = [length * index // num for index in range(num + 1)]
    return [range(begin, end) for begin, end in pairwise(ends) if end > begin]


def _least(rounds: Iterable[Mapping[int, float]]) -> dict[int, float]:
    least = dict[int, float]()
    for taken in rounds:
        for size, seconds in taken.items():
            least[size] = min(seconds, least.get(size, math.inf))
    return least


def _measured(
    drafted: _Driver, trees: Mapping[int, DraftTree], ordinary: _Driver | None, repeats: int, seconds: float
) -> _Passes:
    """Time a first pass of each size, and then rounds."""
    clock, root = drafted.timer.clock, DraftTree(0)
    start = clock()
    first = dict[int, float]() if ordinary is None else {_ORDINARY: ordinary.time(root)[0]}
    tried = list[int]()
    for size in sorted(trees, key=lambda size: size not in _SPREAD):
        if len(tried) < 3 or clock() - start <= seconds / 2:
            try:
                first[size] = drafted.time(trees[size])[0]
            except RuntimeError:  # torch's, of memory too
                if not tried:
                    raise
                break
            tried.append(size)
    able = {size: trees[size] for size in sorted(tried)}
    rounds, is_quiet = undisturbed(
        lambda _: _round(drafted, able, ordinary),
        repeats,
        _LEAST_ROUNDS,
        lambda number: clock() - start <= (seconds if number >= _LEAST_ROUNDS else 2 * seconds),
    )
    return _Passes(first, rounds, is_quiet)


def _round(drafted: _Driver, trees: Mapping[int, DraftTree], ordinary: _Driver | None) -> tuple[dict[int, float], bool]:
    """Return the seconds of a pass of each size, and whether all were undisturbed."""
    root, taken, was_quiet = DraftTree(0), dict[int, float](), True
    if ordinary is not None:
        ordinary.time(root)
        taken[_ORDINARY], was_quiet = ordinary.time(root)
    drafted.time(root)  # the last one, a large pass, has left caches in which the next is slower
    in_a_row = _IN_A_ROW if drafted.target.shapes.filled_to else 1
    for size, tree in trees.items():
        passes = [(*drafted.time(tree), drafted.target.is_warm) for _ in range(in_a_row)]
        settled = [(seconds, is_alone) for seconds, is_alone, is_warm in passes if is_warm]
        if settled:
            taken[size], is_alone = min(settled)
            was_quiet = was_quiet and is_alone
    return taken, was_quiet


def _tree(rng: np.random.Generator, vocab_size: int, size: int, takes_trees: bool, most_deep: float) -> DraftTree:
    tree = DraftTree(0)
    depth = int(min(most_deep, (size - 1) // 2 if takes_trees else size - 1))
    tree.add_chain(ROOT, rng.integers(vocab_size, size=depth).tolist())
    while takes_trees and len(tree) < min(size, vocab_size):
        tree.add(ROOT, int(rng.integers(vocab_size)))
    return tree
