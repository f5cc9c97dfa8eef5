"""Times kernels and stock products against each other on a model's own shapes.

A plain step reads each matrix from memory once, so each product is timed with cold caches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch.nn.functional import linear

from specdec.machine.timing import Rounds, Timer, Verdict, judge, timed_rounds, whole_rounds
from specdec.models.weights.base import Kernel
from specdec.models.weights.layers import ProductLayer

STOCK = ""  # the name of stock products
APART, JOINED = "apart", "joined"
_ROWS = 1, 8  # rows of a plain step, and of one with a draft
_ROUNDS, _ATTEMPTS, _SECONDS = 5, 3, 1.5  # each further attempt adds its rounds, until the verdict is clear
_ROUNDS_OF_CHECK, _SECONDS_OF_CHECK = 3, 0.5
_CHECKED_PART = 0.5  # of the weights' bytes
_MOST_OF_A_SHAPE = 4
_MOST_BYTES = 2**24  # of a shape's matrices if one is smaller, since the time to wake threads would matter
_LEAST_GAIN = 1.05  # speed-up that a kernel needs over stock products
_GAIN_OF_LOSS = 1.25  # speed-up that a kernel with losses needs over one without
_CONTRADICTION = 1.1  # how much slower the winner must be in each round of a check to be contradicted

_Product = Callable[[torch.Tensor], torch.Tensor]
_Same = list[Sequence[ProductLayer]]  # groups of layers with matrices of the same shapes
_Measured = tuple[
    tuple[str, ...], list[Rounds]
]  # kernels that can pack the matrices, and their times if there are several


@dataclass(frozen=True, slots=True)
class Contest:
    """The layers of one dtype, and the kernels to compare.

    Attributes:
        groups: layers that receive the same rows, so that one product may replace several.
        needs_gain: include stock products, which win if no kernel is clearly faster.
        num_cold: numbers to read between two products.
    """

    layers: Sequence[ProductLayer]
    groups: Sequence[Sequence[ProductLayer]]
    kernels: Mapping[str, Kernel]
    needs_gain: bool
    timer: Timer
    num_cold: int

    @property
    def names(self) -> tuple[str, ...]:
        """The contenders' names; of equally fast ones the first wins."""
        return (*((STOCK,) if self.needs_gain else ()), *self.kernels)

    def fastest(self, on_shape: Callable[[], object] = lambda: None) -> Verdict:
        """Return the fastest contender's name; a kernel that can't pack the matrices loses.

        If none can, the first wins. Stock products win by a clear verdict only: on a busy processor they look faster
        than they are, because some of them use one thread. ``on_shape`` is called after each of the ``num_shapes``.
        """
        shapes, callbacks = by_shape([layer] for layer in self.layers), [on_shape]
        verdict = self._settled(
            lambda seconds: self._parts(shapes, _ROUNDS, seconds, callbacks.pop() if callbacks else lambda: None),
            self.names,
        )
        if verdict.winner == STOCK and verdict.runner_up is not None and not verdict.is_clear:
            return Verdict(verdict.runner_up, STOCK, is_clear=False)
        return verdict

    def joining(self, name: str) -> Verdict:
        """Return whether a kernel is faster with groups JOINED, or with their layers APART."""
        shapes = by_shape(self.groups)
        return self._settled(lambda seconds: self._parts_of_joining(name, shapes, _ROUNDS, seconds), (APART,))

    def is_still_fastest(self, verdict: Verdict) -> bool | None:
        """Compare a winner with the runner-up in a few rounds; None if these disagree or were disturbed.

        Only the shapes with most of the weights are measured.
        """
        both = {name: kernel for name, kernel in self.kernels.items() if name in {verdict.winner, verdict.runner_up}}
        contest = replace(self, kernels=both, needs_gain=STOCK in {verdict.winner, verdict.runner_up})
        shapes = _largest(by_shape([layer] for layer in self.layers))
        able, parts = contest._parts(shapes, _ROUNDS_OF_CHECK, _SECONDS_OF_CHECK)
        return _is_confirmed(parts, verdict.winner) if verdict.winner in able else False

    def is_still_right(self, name: str, verdict: Verdict) -> bool | None:
        """Do the same for a kernel's verdict on joining."""
        shapes = _largest(by_shape(self.groups))
        able, parts = self._parts_of_joining(name, shapes, _ROUNDS_OF_CHECK, _SECONDS_OF_CHECK)
        return _is_confirmed(parts, verdict.winner) if verdict.winner in able else False

    def _settled(self, measure: Callable[[float], _Measured], names: Sequence[str]) -> Verdict:
        """Measure repeatedly until the verdict is clear or it has taken long; return the verdict."""
        end = self.timer.clock() + _SECONDS
        able, parts = measure(_SECONDS)
        if not parts:
            return Verdict(next(iter(able), names[0]))
        for _ in range(_ATTEMPTS - 1):
            left = end - self.timer.clock()
            if judge(parts).is_clear or left < 0:
                break
            still_able, more = measure(left)
            if still_able != able or len(more) != len(parts):  # it ended early, since other programs use the processor
                break
            parts = [part.with_more(other) for part, other in zip(parts, more, strict=True)]
        return judge(parts)

    def _parts(
        self, shapes: Sequence[_Same], num_rounds: int, seconds: float, on_shape: Callable[[], object] = lambda: None
    ) -> _Measured:
        """Return the kernels that can pack the matrices, and their seconds per model, times the required speed-up."""
        able, parts, end = self.names, list[Rounds](), self.timer.clock() + seconds
        for index, same in enumerate(shapes):
            if self._is_hopeless(parts, end):
                break
            matrices = [group[0].matrix for group in _some(same)]
            ways = {name: _products(self.kernels.get(name), matrices) for name in able}
            ready = {name: products for name, products in ways.items() if products is not None}
            able = tuple(ready)
            if len(able) > 1:
                scales = {name: len(same) * self._handicap(name) / len(matrices) for name in able}
                share = (end - self.timer.clock()) / (len(shapes) - index)
                parts += [timed.scaled(scales) for timed in self._timed(ready, matrices[0], num_rounds, share)]
            on_shape()
        return able, [part.of(able) for part in parts if len(able) > 1]

    def _parts_of_joining(self, name: str, shapes: Sequence[_Same], num_rounds: int, seconds: float) -> _Measured:
        kernel, parts, end = self.kernels[name], list[Rounds](), self.timer.clock() + seconds
        for index, same in enumerate(shapes):
            if self._is_hopeless(parts, end):
                break
            matrices = [[layer.matrix for layer in group] for group in _some(same)]
            apart = _products(kernel, [matrix for group in matrices for matrix in group])
            joined = _products(kernel, [torch.cat(group) for group in matrices])
            if apart is None or joined is None:
                return (APART,), []
            scales = dict.fromkeys((APART, JOINED), len(same) / len(matrices))
            share = (end - self.timer.clock()) / (len(shapes) - index)
            ways = {APART: apart, JOINED: joined}
            parts += [timed.scaled(scales) for timed in self._timed(ways, matrices[0][0], num_rounds, share)]
        return (APART, JOINED), parts

    @torch.inference_mode()
    def _timed(
        self, ways: Mapping[str, Sequence[_Product]], like: torch.Tensor, num_rounds: int, seconds: float
    ) -> list[Rounds]:
        """Return the seconds of all products by each contender, for few rows and for more."""
        cold, timed = torch.zeros(self.num_cold), []
        for count in _ROWS:
            rows = torch.ones(1, count, like.shape[1], dtype=like.dtype)
            runs = {name: partial(_run, products, rows) for name, products in ways.items()}
            timed.append(timed_rounds(runs, num_rounds, self.timer, cold.sum, seconds / len(_ROWS)))
        return timed

    def _is_hopeless(self, parts: Sequence[Rounds], end: float) -> bool:
        """Return True if time is out and the machine is too busy for a verdict, so more rounds would be useless."""
        return self.timer.clock() > end and not all(part.is_quiet for part in parts)

    def _handicap(self, name: str) -> float:
        if name == STOCK:
            return 1.0 / _LEAST_GAIN
        return _GAIN_OF_LOSS if self.kernels[name].loss(self.layers[0].weight.dtype) else 1.0


def by_shape(groups: Iterable[Sequence[ProductLayer]]) -> list[_Same]:
    """Return the groups by the shapes of their matrices."""
    same: dict[tuple[torch.Size, ...], _Same] = {}
    for group in groups:
        same.setdefault(tuple(layer.weight.shape for layer in group), []).append(group)
    return list(same.values())


def num_shapes(layers: Sequence[ProductLayer]) -> int:
    """Return the number of shapes that a contest measures."""
    return len(by_shape([layer] for layer in layers))


def _is_confirmed(parts: Sequence[Rounds], winner: str) -> bool | None:
    if not parts or not all(part.is_quiet for part in parts):
        return None
    sums = whole_rounds(parts)
    ratios = [float(ratio) for name in sums if name != winner for ratio in sums[winner] / sums[name]]
    if all(ratio < _CONTRADICTION for ratio in ratios):
        return True
    return False if all(ratio > _CONTRADICTION for ratio in ratios) else None


def _largest(shapes: Sequence[_Same]) -> list[_Same]:
    """Return the shapes that have most of the bytes, the largest first."""
    sizes = [sum(layer.weight.nbytes for group in same for layer in group) for same in shapes]
    order = sorted(range(len(shapes)), key=lambda index: -sizes[index])
    before = np.cumsum([0, *(sizes[index] for index in order)])
    return [shapes[index] for index, done in zip(order, before, strict=False) if done < _CHECKED_PART * sum(sizes)]


def _some(same: _Same) -> _Same:
    each = sum(layer.weight.nbytes for layer in same[0])
    return same[: max(1, min(_MOST_OF_A_SHAPE, _MOST_BYTES // each))]


def _run(products: Sequence[_Product], rows: torch.Tensor) -> None:
    for multiply in products:
        multiply(rows)


def _products(kernel: Kernel | None, matrices: Sequence[torch.Tensor]) -> list[_Product] | None:
    """Return a function of rows for each matrix, or None if the kernel can't pack them."""
    if kernel is None:
        return [partial(linear, weight=matrix) for matrix in matrices]
    try:
        packed = [kernel.pack(matrix) for matrix in matrices]
        kernel.multiply(matrices[0][:1], packed[0], None)
    except Exception:  # third-party code; its error is reported if the kernel is requested by name
        return None
    if any(each is None for each in packed):
        return None
    return [partial(kernel.multiply, packed=each, bias=None) for each in packed]
