"""Runs one text through every kind of pass that decoding uses, on the model that will decode.

Plain steps, trees of several sizes that commit a path and continue, prompts followed by a tree, and ragged batches
return logits at the same positions. The self-test compares these with the model's own forward. Their differences from
each other are the numerical noise of a mode, which is zero if decoding is bit-exact.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch

from specdec.backends.output import OutputRow
from specdec.layout import Layout, Shapes, Window
from specdec.masks.exact.regions import seen_in
from specdec.target import CacheRow, PlannedPass, Target
from specdec.tree import ROOT, DraftTree, Role

RAGGED = "a ragged batch"  # the kind of pass that runs last
_SEED = 2402
# Tokens of context: few, and enough that later positions have closed regions and a prefix separate from the tail.
CONTEXTS = 6, 160
_NUM_PLAIN = 6, 2  # positions after each context
_SIZES = (6, 13), (33, 100)  # of the trees after each context
_NUM_IDS = 256  # in the text and in other branches
_LONGEST_PATH = 4
_KEPT = 2
_SECONDS = 0.1  # after which no larger trees are run: for large models on slow devices


class PassLogits(NamedTuple):
    """The logits at one position, ``(vocab,)``, and the kind of pass that computed them."""

    kind: str
    position: int
    logits: torch.Tensor


class WrongLayout(Exception):  # noqa: N818 - it is an answer
    """Raised if a mask compiler breaks a law of layouts."""


@dataclass(slots=True)
class Walk:
    """The logits of ``tokens``: those of plain steps by position, and those of every other kind of pass."""

    tokens: list[int]
    plain: dict[int, torch.Tensor] = field(default_factory=dict)
    others: list[PassLogits] = field(default_factory=list)

    def passes(self) -> Iterator[tuple[str, int, torch.Tensor]]:
        """Yield the kind of pass, the position and the logits of all of them, plain steps first."""
        yield from (("a plain step", position, logits) for position, logits in self.plain.items())
        yield from self.others

    def result(self, fault: str = "") -> "SelfTestResult":
        """Return how the other passes differ from plain steps; NaN counts as different."""
        where, noise = "", 0.0
        for found in self.others:
            expected = self.plain[found.position]
            if not torch.equal(found.logits, expected):
                where = where or found.kind
                difference = (found.logits.double() - expected.double()).abs().max()
                noise = max(noise, float(difference.nan_to_num(float("inf"), float("inf"))))
        inexact = f"logits in {where} have other bits than in plain steps" if where else ""
        return SelfTestResult(fault, inexact, noise)


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The result of trying a model out.

    Attributes:
        fault: why the model can't be driven, or "".
        inexact: the first kind of pass whose logits have other bits than plain steps, as the reason, or "".
        noise: the largest difference of a logit.
    """

    fault: str = ""
    inexact: str = ""
    noise: float = 0.0


def distances(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the root mean square difference of logits, ``(…, vocab)``, over the vocabulary: ``(…,)``."""
    return (logits - expected).square().mean(-1).sqrt()


def walk(target: Target, is_usable: Callable[[list[int]], Sequence[bool]] | None = None, is_timed: bool = True) -> Walk:
    """Run a random text through every kind of pass and return all logits.

    The target has no open rows before or after. For models with few positions, the text is as long as they allow.

    Args:
        is_usable: the ids that the text may have.
        is_timed: leave out the largest trees if the other passes have taken long.

    Raises:
        WrongLayout: for the first layout that breaks a law.
    """
    rng = np.random.default_rng(_SEED)
    most = CONTEXTS[1] + _NUM_PLAIN[1]
    ids = rng.integers(target.shapes.vocab_size, size=_NUM_IDS).tolist()
    usable = ids if is_usable is None else list(compress(ids, is_usable(ids)))
    tokens = rng.choice(usable, size=min(target.shapes.context_length, most)).tolist()
    walker = _Walker(target, rng, usable, Walk(tokens), _SECONDS if is_timed else math.inf)
    try:
        short = max(1, min(CONTEXTS[0], len(tokens) - _NUM_PLAIN[0]))
        walker.walk(short, min(_NUM_PLAIN[0], len(tokens) - short), _SIZES[0])
        if len(tokens) > CONTEXTS[0] + _NUM_PLAIN[0]:
            walker.walk(len(tokens) - _NUM_PLAIN[1], _NUM_PLAIN[1], _SIZES[1])
    finally:
        for row in target.rows:
            target.release(row)
    return walker.done


@dataclass(frozen=True, slots=True)
class _Walker:
    target: Target
    rng: np.random.Generator
    ids: list[int]
    done: Walk
    seconds: float

    def walk(self, context: int, num_plain: int, sizes: Sequence[int]) -> None:
        """Run the positions after a context through every kind of pass, in a row that is closed afterwards."""
        stop = context - 1 + num_plain
        row = self._begun(context - 1, sizes[0], stop, num_kept=0)
        self._plain(row, stop)
        self._trees(row, stop, sizes)
        if context > CONTEXTS[0]:
            self._batch(row, stop)
        for each in self.target.rows:
            self.target.release(each)

    def _begun(self, length: int, size: int, stop: int, num_kept: int) -> CacheRow:
        """Open a row with the text's first tokens, the last of them with a tree in one pass; keep part of its path."""
        row = self.target.open(len(self.done.tokens))
        if not self.target.shapes.takes_trees:  # later passes continue from a state, if the model has any
            self.target.read(row, self.done.tokens[: length // 2])
        while chunk := self.target.chunk_after(row, self.done.tokens[: length + 1]):
            self.target.read(row, chunk)
        tree, path = self._tree(length, size, stop)
        planned = self.target.compile({row: tree}, {row: self.done.tokens[row.length : length]})
        answers = self.target.forward(planned).rows[row]
        self._note("a tree in the prompt's last pass", length, answers, path)
        self.target.commit(planned, {row: path[:num_kept]})
        return row

    def _plain(self, row: CacheRow, stop: int) -> None:
        """Decode token by token, and restore the row's length."""
        start = row.length
        for position in range(start, stop):
            planned, answers = self._forward({row: DraftTree(self.done.tokens[position])})
            self.done.plain[position] = answers[row].logits(ROOT)
            self.target.commit(planned, {row: (ROOT,)})
        self.target.rollback(row, start)

    def _trees(self, row: CacheRow, stop: int, sizes: Sequence[int]) -> None:
        """Forward one tree after another, each after the kept path of the previous one."""
        began = time.perf_counter()
        for size in sizes:
            if size > _SIZES[1][0] and time.perf_counter() - began > self.seconds:
                break
            tree, path = self._tree(row.length, size, stop)
            planned, answers = self._forward({row: tree})
            self._note(f"a tree of {size} nodes", row.length, answers[row], path)
            self.target.commit(planned, {row: path[:_KEPT] if row.length + _KEPT < stop else ()})

    def _batch(self, first: CacheRow, stop: int) -> None:
        """Forward a second, shorter row together with the first: single tokens, then trees of different sizes."""
        end, takes_trees = CONTEXTS[0] - 1 + _NUM_PLAIN[0], self.target.shapes.takes_trees
        second = self._begun(CONTEXTS[0] - 1, _SIZES[0][1], end, num_kept=_KEPT)
        if not takes_trees:  # a state after all of its tokens, so that its chain is about as long as the other
            self.target.read(second, [self.done.tokens[second.length]])
        planned, answers = self._forward({row: DraftTree(self.done.tokens[row.length]) for row in (first, second)})
        for row in (first, second):
            self._note(f"{RAGGED} of single tokens", row.length, answers[row], (ROOT,))
        self.target.commit(planned, dict.fromkeys((first, second), ()))
        grown = {
            row: self._tree(row.length, size, last)
            for row, size, last in zip((first, second), _SIZES[0], (stop, end), strict=True)
        }
        _, answers = self._forward({row: tree for row, (tree, _) in grown.items()})
        for row, (_, path) in grown.items():
            shared = path if takes_trees or row is second else path[-1:]  # a state is moved up to the root first
            self._note(RAGGED, row.length + path.index(shared[0]), answers[row], shared)

    def _forward(self, trees: Mapping[CacheRow, DraftTree]) -> tuple[PlannedPass, Mapping[CacheRow, OutputRow]]:
        planned = self.target.compile(trees)
        lengths = [row.length for row in planned.rows]
        if fault := fault_of(planned.layout, list(trees.values()), lengths, self.target.shapes):
            raise WrongLayout(f"{type(self.target.compiler).__name__} compiled a wrong layout: {fault}")
        return planned, self.target.forward(planned).rows

    def _note(self, kind: str, position: int, row: OutputRow, path: Sequence[int]) -> None:
        self.done.others += [PassLogits(kind, position + depth, row.logits(node)) for depth, node in enumerate(path)]

    def _tree(self, position: int, size: int, stop: int) -> tuple[DraftTree, list[int]]:
        """Return a tree of about ``size`` nodes that contains the text from a position on, and the text's path.

        The path ends before ``stop``. If the model supports chains only, the tree is the path; without drafts, a root.
        """
        longest = _LONGEST_PATH if self.target.shapes.takes_drafts else 1
        text = self.done.tokens[position : min(stop, position + longest)]
        tree, path = DraftTree(text[0]), [ROOT]
        for token in text[1:]:
            self._add_beside(tree, position)
            path.append(tree.add(path[-1], token))
        for _ in range(size - len(tree)):
            self._add_beside(tree, position)
        return tree, path

    def _add_beside(self, tree: DraftTree, position: int) -> None:
        """Add a random node somewhere in the tree, if the model supports trees."""
        most_deep = min(len(self.done.tokens) - position, 2 * _LONGEST_PATH) - 1
        parents = [node for node in range(len(tree)) if tree.depths[node] < most_deep]
        if parents and self.target.shapes.takes_trees:
            tree.add(int(self.rng.choice(parents)), int(self.rng.choice(self.ids)), Role.SUPPORT)


def fault_of(layout: Layout, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> str:
    """Return the first law that a layout breaks, or ""; checks ids, positions, and what each node sees."""
    if layout.lengths != tuple(lengths) or layout.num_nodes != tuple(map(len, trees)):
        return "its rows have wrong lengths or numbers of nodes"
    masks = list(_masks(layout, shapes))
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        if not masks and not tree.is_chain:
            return "a tree with branches has no mask"
        ids, positions = layout.input_ids[row].tolist(), layout.positions[row].tolist()
        for node, token in enumerate(tree.tokens):
            if (ids[node], positions[node]) != (token, length + tree.depths[node]):
                return f"node {node} has a wrong token or position"
        for window, seen in masks:
            if fault := _fault_of_mask(seen[row], tree, length, window):
                return fault
    return ""


def _fault_of_mask(seen: torch.Tensor, tree: DraftTree, length: int, window: Window | None) -> str:
    """Return the first slot that a node of one row wrongly sees or doesn't see, or ""; ``seen``: (nodes, slots)."""
    positions = [*range(length), *(length + depth for depth in tree.depths)]
    for node, depth in enumerate(tree.depths):
        lineage = {*range(length), *(length + ancestor for ancestor in tree.lineage(node))}
        expected = {slot for slot in lineage if window is None or _is_within(window, length + depth, positions[slot])}
        if wrong := expected ^ set(seen[node].nonzero().flatten().tolist()):
            slot = min(wrong)
            return f"node {node} {'does not see' if slot in expected else 'sees'} slot {slot}"
    return ""


def _masks(layout: Layout, shapes: Shapes) -> Iterator[tuple[Window | None, torch.Tensor]]:
    """Yield each kind's window and what its nodes see, by the mask and, if it has any, by its regions."""
    for kind, mask in layout.masks.items():
        yield shapes.attention[kind], layout.visible(kind).cpu()
        if hasattr(mask, "regions"):
            yield shapes.attention[kind], seen_in(mask.regions, mask[:, 0].shape)


def _is_within(window: Window, query: int, key: int) -> bool:  # not the compilers' own function, which is under test
    return query - key < window.size if window.kind == "sliding" else query // window.size == key // window.size
