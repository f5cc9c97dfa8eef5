"""A check of the backend's contract, with random rows, trees and paths."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specdec.backends import Backend, OutputRow
from specdec.layout import Compiler
from specdec.plugins import built_in
from specdec.target import CacheRow, PlannedPass, Target
from specdec.tree import ROOT, DraftTree

_NUM_PASSES = 4
_NUM_STEPS = 12
_MOST_NODES = 8
_LONGEST = 20


def check_backend(
    backend: Backend,
    plain: Callable[[list[int]], torch.Tensor],
    compiler: Compiler | None = None,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """Check that trees equal their paths, that kept tokens equal a fresh pass, and that rows don't affect each other.

    Runs about 30 passes over up to five rows; a backend that doesn't support trees gets chains.

    Args:
        backend: without open rows, before and after the check.
        plain: returns the model's logits after a text, ``(vocab,)``, computed without the backend.
        compiler: the backend's mask compiler (default: ``dense``).
        tolerance: the largest difference of a logit that counts as rounding.
        seed: of the texts, trees and choices.

    Raises:
        AssertionError: with the law that is broken.
    """
    case = _Case(Target(backend, compiler or built_in("masks", "dense")), plain, tolerance, np.random.default_rng(seed))
    try:
        for length in (1, *case.rng.integers(1, _LONGEST, size=3).tolist()):
            case.begin(length)
        for _ in range(_NUM_PASSES):
            case.decode()
            case.take_back()
            case.leave()
            case.copy()
            case.begin(int(case.rng.integers(1, _LONGEST)))
        case.renumber()
    finally:
        for row in case.target.rows:
            case.target.release(row)
    assert backend.num_rows == 0, f"{backend.num_rows} rows are left open"


def check_steps(target: Target, plain: Callable[[list[int]], torch.Tensor], tolerance: float, seed: int) -> None:
    """Check passes over drafts of one growing text; see ``check_backend``."""
    case = _Case(target, plain, tolerance, np.random.default_rng(seed))
    case.begin(1)
    for _ in range(_NUM_STEPS):
        case.decode()
    case.leave()


@dataclass
class _Case:
    """Rows of a target, and the texts that they should contain."""

    target: Target
    plain: Callable[[list[int]], torch.Tensor]
    tolerance: float
    rng: np.random.Generator
    texts: dict[CacheRow, list[int]] = field(default_factory=dict)

    def begin(self, length: int) -> None:
        """Open a row: prefill a prompt in chunks, the last one with a tree, and keep a path of the tree."""
        *prompt, root = self._tokens(length)
        row, tree = self.target.open(capacity=1), self._tree(root)  # too small on purpose: buffers must grow
        self.texts[row] = []
        while chunk := self.target.chunk_after(row, [*prompt, root]):
            self.target.read(row, chunk)
        planned = self.target.compile({row: tree}, {row: prompt[row.length :]})
        self._hold(prompt, tree, self.target.forward(planned).rows[row], "after a prompt")
        self.texts[row] += prompt
        self._keep(planned, {row: tree}, [row])

    def decode(self) -> None:
        """Run a pass over some rows; some of them keep nothing."""
        chosen = self._some(self.texts) or [self._one()]
        trees = {row: self._tree(self._tokens(1)[0]) for row in chosen}
        planned = self.target.compile(trees)
        for row, answers in self.target.forward(planned).rows.items():
            self._hold(self.texts[row], trees[row], answers, "with other rows")
        self._keep(planned, trees, self._some(chosen))

    def take_back(self) -> None:
        """Roll a row back, possibly to length 0."""
        row = self._one()
        del self.texts[row][int(self.rng.integers(len(self.texts[row]) + 1)) :]
        self.target.rollback(row, len(self.texts[row]))

    def leave(self) -> None:
        """Close a row."""
        row = self._one()
        self.target.release(row)
        del self.texts[row]
        num_rows = self.target.backend.num_rows
        assert num_rows == len(self.texts), f"{num_rows} rows are open, {len(self.texts)} expected"

    def copy(self) -> None:
        """Fill a row with copies of another's prefix, if the backend supports copies, and continue from there."""
        if not self.target.backend.holds_prefixes:
            return
        source, row = self._one(), self.target.open(capacity=1)
        length = int(self.rng.integers(len(self.texts[source]) + 1))
        cut = int(self.rng.integers(length + 1))
        held = [
            self.target.copy_block(source, start, stop) for start, stop in ((0, cut), (cut, length)) if start < stop
        ]
        if held:
            self.target.append_blocks(row, held, length)
        self.texts[row] = self.texts[source][:length]
        tree = self._tree(self._tokens(1)[0])
        planned = self.target.compile({row: tree})
        self._hold(self.texts[row], tree, self.target.forward(planned).rows[row], "after a copied prefix")
        self._keep(planned, {row: tree}, [row])

    def renumber(self) -> None:
        """Run passes by the backend's own row numbers, with and without row 0: the last row replaces a closed one."""
        backend, texts = self.target.backend, [self.texts[row] for row in self.target.rows]
        for first in (0, 1):
            later = texts[first:]
            trees = [self._tree(self._tokens(1)[0]) for _ in later]
            layout = self.target.compiler.compile(trees, list(map(len, later)), backend.shapes)
            output = backend.forward(replace(layout, first=first, trees=tuple(trees)))
            for number, (text, tree) in enumerate(zip(later, trees, strict=True)):
                self._hold(text, tree, OutputRow(output, number), f"in a pass from row {first} on")
            backend.commit([[]] * len(later))

    def _hold(self, text: Sequence[int], tree: DraftTree, answers: OutputRow, where: str) -> None:
        """Check that every node's logits are those after the text and its path."""
        wholes = [[*text, tree.tokens[ROOT], *tree.path(node)] for node in range(len(tree))]
        expected = [self.plain(whole) for whole in reversed(wholes)][::-1]  # longest first: it may answer for prefixes
        for node, plain in enumerate(expected):
            error = float((answers.logits(node).float().cpu() - plain.float().cpu()).abs().max())
            assert error <= self.tolerance, (
                f"{where}, node {node} of the tree {tree.parents} after {len(text)} tokens is off by {error:.2g}; "
                f"allowed {self.tolerance:.2g}"
            )

    def _keep(self, planned: PlannedPass, trees: dict[CacheRow, DraftTree], rows: Sequence[CacheRow]) -> None:
        paths = {}
        for row in rows:
            tree = trees[row]
            paths[row] = [*tree.lineage(int(self.rng.integers(len(tree))))]
            self.texts[row] += [tree.tokens[node] for node in paths[row]]
        self.target.commit(planned, paths)

    def _tree(self, root: int) -> DraftTree:
        """Return a tree of distinct tokens, so no nodes merge, each below one of the last three nodes."""
        tree, takes_trees = DraftTree(root), self.target.shapes.takes_trees
        for index, token in enumerate(self._tokens(int(self.rng.integers(_MOST_NODES)))):
            tree.add(int(self.rng.integers(max(0, index - 2), index + 1)) if takes_trees else index, token)
        return tree

    def _tokens(self, count: int) -> list[int]:
        chosen: list[int] = self.rng.permutation(self.target.shapes.vocab_size)[:count].tolist()
        return chosen

    def _some(self, rows: Iterable[CacheRow]) -> list[CacheRow]:
        return [row for row in rows if self.rng.random() < 0.7]

    def _one(self) -> CacheRow:
        return list(self.texts)[int(self.rng.integers(len(self.texts)))]
