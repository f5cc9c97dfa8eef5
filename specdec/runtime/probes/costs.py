"""Measures c(T): what a pass over T nodes costs on this machine, for this model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from specdec.costs import NOMINAL_COSTS, Costs
from specdec.machine.timing import Timer, undisturbed
from specdec.runtime.probes.findings import recalled
from specdec.target import CacheRow, PlannedPass, Target
from specdec.tree import ROOT, DraftTree

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXT = 128  # tokens
# If a strategy requests costs while a generator is made, only a few sizes are measured, to load quickly.
SIZES_AT_LOAD, SECONDS_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD = (1, 6, 33), 0.6, 16, 6
_MOST_ROUNDS = 8  # of passes before they count as warm
_IN_A_ROW = 3  # passes of one size in a row, if passes are padded: most have the same size then, and are fastest
_SPREAD = 1, 8, 32, 128  # measured first, since there may not be time for all
_ORDINARY = 0  # the key of ordinary plain passes among those of sizes
_LEAST_ROUNDS = 3  # undisturbed rounds that suffice
_STRETCHES, _AGREEMENT = 3, 1.25  # stretches of rounds, and how far the largest of their ratios may exceed the smallest


def measure_costs(
    target: Target,
    sizes: Sequence[int] = SIZES,
    context: int = CONTEXT,
    repeats: int = 9,
    timer: Timer | None = None,
    plain: Target | None = None,
    seconds: float = math.inf,
) -> Costs:
    """Time passes of several sizes after a context, in rounds of one pass of each size and an ordinary plain pass.

    Half of a tree's nodes are a chain and the others are children of the root, so a mask is needed, as for most drafts.
    The cost of a size is the plain pass's cost times the ratio of the two in the same rounds, since other programs slow
    down both.

    Untimed passes come first, for at most ``seconds`` per target, until they are warm. After half of ``seconds``, no
    further size is measured; after all of ``seconds``, no round begins except the first three, which may take as long
    again. Costs of larger sizes than could be measured are extrapolated in proportion to their size. A target without
    drafts is timed on single tokens only, because it reads each in a pass of its own.

    Args:
        plain: drives the model as ordinary plain decoding does, if ``target`` has other numerics.
    """
    rng, timer = np.random.default_rng(0), timer or Timer()
    shapes = target.shapes
    context = min(context, shapes.context_length // 2)
    most_deep = shapes.context_length - context - 2
    if shapes.takes_trees:
        most_deep = min(most_deep, context)
    tokens = rng.integers(shapes.vocab_size, size=context).tolist()
    timed = sizes if shapes.takes_drafts else (1,)
    trees = {size: _tree(rng, shapes.vocab_size, size, shapes.takes_trees, most_deep) for size in timed}
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
        shapes.padding,
        is_clear,
    )


def costs_of(target: Target, model: Any) -> Costs:
    """Return the costs of a target's passes, measured once for a model, numerics and device.

    While a request decodes they aren't measured: if they are unknown, they are nominal.
    """
    if target.backend.costs is not None:
        return target.backend.costs

    def measured() -> Costs:
        if target.is_decoding:
            raise _DecodingError
        return measure_costs(target, SIZES_AT_LOAD, CONTEXT_AT_LOAD, REPEATS_AT_LOAD, seconds=SECONDS_AT_LOAD)

    with suppress(_DecodingError):
        return recalled(model, f"costs {target.examination.key}", Costs, measured, keeps=lambda costs: costs.is_clear)
    return NOMINAL_COSTS


class _DecodingError(Exception):
    """A request decodes, so nothing is measured."""


@dataclass(frozen=True, slots=True)
class _Driver:
    """Runs and times passes over trees in one row of a target."""

    target: Target
    row: CacheRow
    timer: Timer

    @classmethod
    @contextmanager
    def opened(cls, target: Target, tokens: Sequence[int], timer: Timer) -> Iterator[Self]:
        """Open a row with some tokens for the block."""
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
                except RuntimeError:  # torch raises it for lack of memory too, which the timed passes handle
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
    """The seconds of passes by size; the key of ordinary plain passes is ``_ORDINARY``.

    Attributes:
        first: seconds of each size's first pass, which allocates memory and plans.
        rounds: seconds of the later passes, without sizes that weren't warm yet.
        is_quiet: True if no round was disturbed. Disturbed rounds are left out if there are enough others.
    """

    first: Mapping[int, float]
    rounds: Sequence[Mapping[int, float]]
    is_quiet: bool

    def costs(self) -> tuple[dict[int, float], float, bool]:
        """Return the seconds by size, those of a plain pass, and whether the rounds agree about them.

        The rounds are divided into three stretches. In each, taking minima excludes the effect of other programs. Their
        ratio is wrong if the machine's speed changes within the stretch, so the median of the three ratios is used.
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
    """Time the first pass of each size, and then rounds."""
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
    drafted.time(root)  # the previous large pass has evicted caches, which makes the next pass slower
    in_a_row = _IN_A_ROW if drafted.target.shapes.padding.sizes else 1
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
