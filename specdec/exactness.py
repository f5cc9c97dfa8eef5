"""How far a node's logits depend on what else is in the pass, measured on the very model that is to decode.

Plain steps, trees of several sizes, ragged batches and prompts of several lengths give the logits of the same
positions; how much they differ is the numerical noise of a mode: none at all where decoding is bit-exact.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.backends.base import Backend, OutputRow
from specdec.layout import Compiler
from specdec.tree import ROOT, DraftTree, Role

_SEED = 2402
# Tokens: few, where the least goes along, and so many that the tokens behind have closed regions, and not all the same.
_CONTEXTS = (4, 218)
_NUM_PLAIN = 10
_SIZES = (2, 3, 6, 13, 33, 100)
_LATER = 3
_SECONDS = 0.5  # after which no larger trees are tried: large models on slow devices


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first kind of pass whose bits differ ("" for none), and the greatest difference of a logit."""

    where: str
    noise: float


def measure_deviation(backend: Backend, compiler: Compiler) -> Deviation:
    """Compare the logits of each kind of pass with those of plain steps; the backend has no open rows, nor has after.

    A logit that is not a number counts as different.
    """
    rng, limit = np.random.default_rng(_SEED), backend.shapes.max_positions or 4 * max(_CONTEXTS)
    found = []
    for context in sorted({min(context, max(limit - _NUM_PLAIN, limit // 2)) for context in _CONTEXTS}):
        tokens = rng.integers(backend.shapes.vocab_size, size=min(context + _NUM_PLAIN, limit)).tolist()
        found.append(_deviation(_Trial(backend, compiler, tokens, context, rng)))
    return Deviation(next((one.where for one in found if one.where), ""), max(one.noise for one in found))


def _deviation(trial: "_Trial") -> Deviation:
    where, noise = "", 0.0
    try:
        plain = dict(trial.plain())
        for kind, position, logits in trial.others():
            expected = plain[position]
            if not torch.equal(logits, expected):
                where = where or kind
                difference = (logits.double() - expected.double()).abs().max()
                noise = max(noise, float(difference.nan_to_num(float("inf"), float("inf"))))
    finally:
        while trial.backend.num_rows:
            trial.backend.release(trial.backend.num_rows - 1)
    return Deviation(where, noise)


@dataclass(frozen=True, slots=True)
class _Trial:
    backend: Backend
    compiler: Compiler
    tokens: list[int]
    context: int
    rng: np.random.Generator

    def plain(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each position's logits, token by token; the row is left open with all but one token of the context."""
        output = self.backend.prefill(self.tokens[: self.context], self._root(self.context - 1), len(self.tokens))
        yield self.context - 1, output.row(0).logits(ROOT)
        self.backend.keep([(ROOT,)])
        for position in range(self.context, len(self.tokens)):
            yield position, self._forward([self._root(position)], [position])[0].logits(ROOT)
            self.backend.keep([(ROOT,)])
        self.backend.rollback(0, self.context - 1)

    def others(self) -> Iterator[tuple[str, int, torch.Tensor]]:
        """The same positions' logits in every other way that decoding knows, behind the row of ``plain``."""
        began = time.perf_counter()
        for size in _SIZES:
            if size <= _SIZES[2] or time.perf_counter() - began < _SECONDS:
                tree, path = self._tree(self.context - 1, size)
                row = self._forward([tree], [self.context - 1])[0]
                yield from self._along(path, self.context - 1, row, f"a tree of {size} nodes")
                self.backend.keep([()])
        later = min(self.context + _LATER, len(self.tokens))
        for length in (self.context, later):
            tree, path = self._tree(length - 1, _SIZES[3])
            row = self.backend.prefill(self.tokens[:length], tree, len(self.tokens)).row(0)
            yield from self._along(path, length - 1, row, "a tree that goes along with the prompt")
            self.backend.keep([()] * self.backend.num_rows)
        lengths = [self.context - 1, self.context - 1, later - 1]
        grown = [self._tree(length, size) for length, size in zip(lengths, _SIZES[1:4], strict=True)]
        rows = self._forward([tree for tree, _ in grown], lengths)
        for row, length, (_, path) in zip(rows, lengths, grown, strict=True):
            yield from self._along(path, length, row, "a ragged batch")
        self.backend.keep([()] * self.backend.num_rows)

    def _root(self, position: int) -> DraftTree:
        return DraftTree(self.tokens[position])

    def _forward(self, trees: Sequence[DraftTree], lengths: Sequence[int]) -> list[OutputRow]:
        output = self.backend.forward(self.compiler.compile(trees, lengths, self.backend.shapes))
        return [output.row(row) for row in range(len(trees))]

    def _along(
        self, path: Sequence[int], position: int, row: OutputRow, kind: str
    ) -> Iterator[tuple[str, int, torch.Tensor]]:
        yield from ((kind, position + depth, row.logits(node)) for depth, node in enumerate(path))

    def _tree(self, position: int, size: int) -> tuple[DraftTree, list[int]]:
        """About so many nodes, the text from a position on among them, and where that is; the root first."""
        text = self.tokens[position : position + 1 + size // 2]
        tree, path = DraftTree(text[0]), [ROOT]
        for token in text[1:]:
            self._add_beside(tree, position)
            path.append(tree.add(path[-1], token))
        for _ in range(size - len(tree)):
            self._add_beside(tree, position)
        return tree, path

    def _add_beside(self, tree: DraftTree, position: int) -> None:
        """A random node somewhere in the tree, where the model takes trees."""
        parents = [node for node in range(len(tree)) if position + tree.depths[node] + 1 < len(self.tokens)]
        if parents and self.backend.shapes.takes_trees:
            token = int(self.rng.integers(self.backend.shapes.vocab_size))
            tree.add(parents[int(self.rng.integers(len(parents)))], token, Role.SUPPORT)
