"""Measures c(T): what a pass over T nodes costs on this machine, for this model."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from specdec.costs import NOMINAL_COSTS, Costs
from specdec.machine.facts import waits_by_thread
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
_MOST_TIMES = 3  # times the requested rounds, if some are disturbed
_WAITED = 0.05  # of a measured time: if a thread waits longer for a processor, the time is useless
_STRETCHES, _AGREEMENT = 3, 1.25  # stretches of rounds, and how far the largest of their ratios may exceed the smallest


@dataclass(frozen=True, slots=True)
class Timer:
    """Times calls, and reports whether other programs used the processor meanwhile.

    Attributes:
        clock: returns seconds.
        waits: returns the seconds that each thread of this process has waited for a processor so far; {} if unknown.
    """

    clock: Callable[[], float] = time.perf_counter
    waits: Callable[[], Mapping[str, float]] = waits_by_thread

    def time(self, run: Callable[[], object]) -> tuple[float, bool]:
        """Return a call's seconds, and True if no thread had to wait for a processor."""
        before, began = self.waits(), self.clock()
        run()
        seconds = self.clock() - began
        waited = max((total - before.get(thread, 0.0) for thread, total in self.waits().items()), default=0.0)
        return seconds, waited <= _WAITED * seconds


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
        spent, of_plain, is_clear = _measured(drafted, trees, ordinary, repeats, seconds)
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
                self.target.commit(planned, {self.row: (ROOT,)})
        self.target.rollback(self.row, length)

    def _run(self, tree: DraftTree) -> PlannedPass:
        planned = self.target.compile({self.row: tree})
        output = self.target.forward(planned)
        if self.target.shapes.device.type != "cpu":  # which only queues the pass: wait as a step does
            output.rows[self.row].is_finite(ROOT)
        return planned


def _measured(
    drafted: _Driver, trees: Mapping[int, DraftTree], ordinary: _Driver | None, repeats: int, seconds: float
) -> tuple[dict[int, float], float, bool]:
    """Return the seconds by size, those of a plain pass, and whether they are sure.

    The first pass of each size, which allocates memory and plans, counts only if no round has timed the size. Rounds in
    which other programs used the processor are made up for, and left out if there are enough others.
    """
    clock = drafted.timer.clock
    start = clock()
    first = dict[int, float]() if ordinary is None else {_ORDINARY: ordinary.time(DraftTree(0))[0]}
    able = dict[int, DraftTree]()
    for size in sorted(trees, key=lambda size: size not in _SPREAD):
        if len(able) < 3 or clock() - start <= seconds / 2:
            try:
                first[size] = drafted.time(trees[size])[0]
            except RuntimeError:  # torch's, of memory too
                if not able:
                    raise
                break
            able[size] = trees[size]
    able = dict(sorted(able.items()))
    every, quiet = list[dict[int, float]](), list[dict[int, float]]()
    while len(quiet) < repeats and len(every) < _MOST_TIMES * repeats:
        if clock() - start > (seconds if len(every) >= _LEAST_ROUNDS else 2 * seconds):
            break
        taken, was_quiet = _round(drafted, able, ordinary)
        every.append(taken)
        quiet += [taken] if was_quiet else []
    is_quiet = len(quiet) >= min(_LEAST_ROUNDS, repeats)
    spent, plain, are_alike = _costs(first, quiet if is_quiet else every)
    return spent, plain, is_quiet and are_alike


def _costs(first: Mapping[int, float], rounds: Sequence[Mapping[int, float]]) -> tuple[dict[int, float], float, bool]:
    """Return the seconds by size, those of a plain pass, and whether the rounds agree about them.

    Every third round makes a stretch. In each, taking minima excludes the effect of other programs. Their ratio is
    wrong if the machine's speed changes within a round, so the median of the three ratios is used.
    """
    sizes = sorted(size for size in first if size != _ORDINARY)
    base = _ORDINARY if _ORDINARY in first else sizes[0]
    stretches = [_least(rounds[begin::_STRETCHES]) for begin in range(_STRETCHES)]
    plain = min((least[base] for least in stretches if base in least), default=first[base])
    spent, are_alike = dict[int, float](), len(rounds) >= _STRETCHES
    for size in sizes:
        pairs = [(least[size], least[base]) for least in stretches if size in least and base in least]
        pairs = sorted(pairs or [(first[size], first[base])], key=lambda pair: pair[0] / pair[1])
        taken, of_base = pairs[len(pairs) // 2]
        spent[size] = taken * (plain / of_base)
        are_alike = are_alike and pairs[-1][0] / pairs[-1][1] <= _AGREEMENT * pairs[0][0] / pairs[0][1]
    return spent, plain, are_alike


def _least(rounds: Iterable[Mapping[int, float]]) -> dict[int, float]:
    least = dict[int, float]()
    for taken in rounds:
        for size, seconds in taken.items():
            least[size] = min(seconds, least.get(size, math.inf))
    return least


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
