"""Random cases: distributions over a vocabulary, shapes of drafts, and trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from specdec.backends import TokenDistribution
from specdec.constraints import Constraint, ConstraintState, Vocabulary
from specdec.sampling import RandomSource
from specdec.tree import ROOT, DraftTree, Role

if TYPE_CHECKING:
    from hypothesis import strategies as st


@dataclass(frozen=True)
class Shape:
    """The shape of a draft below a node: the kind of each draw, and the shape below its child.

    ``sampled`` draws come from the drafter's distribution at the node, renormalised without earlier tokens if
    ``replaces`` is False; the j-th ``chosen`` draw is the j-th most likely token.
    """

    draws: tuple[tuple[Literal["sampled", "chosen"], "Shape"], ...] = ()
    replaces: bool = True

    @property
    def depth(self) -> int:
        """The depth of the deepest draw."""
        return max((1 + below.depth for _, below in self.draws), default=0)


def draw_tree(context: Sequence[int], q: TokenDistribution, shape: Shape, source: RandomSource) -> DraftTree:
    """Draw a random tree with a given shape below the last token of ``context``; q maps a context to a distribution."""
    tree = DraftTree(context[-1])
    _draw_below(tree, ROOT, context, q, shape, source)
    return tree


def _draw_below(
    tree: DraftTree, node: int, context: Sequence[int], q: TokenDistribution, shape: Shape, source: RandomSource
) -> None:
    if not shape.draws:
        return
    path = (*context, *tree.path(node))
    probs = torch.tensor(list(q(path)), dtype=torch.float64)
    ranked = iter(probs.argsort(descending=True, stable=True).tolist())
    for kind, below in shape.draws:
        known = len(tree)
        if kind == "chosen":
            token = next(ranked, None)
            if token is None:
                continue  # more choices than tokens
            child = tree.add(node, token)
        elif not probs.any():
            return  # without replacement every possible token is out
        else:
            child = tree.add(node, source.categorical(probs, -1), q=probs)
            if not shape.replaces:
                probs = probs.index_fill(0, torch.tensor(tree.tokens[child]), 0.0)
                probs = probs / probs.sum() if probs.any() else probs
        if child == known:  # a token drawn twice has the subtree of its first draw
            _draw_below(tree, child, context, q, below, source)


@dataclass(frozen=True)
class TableDistribution:
    """A separate distribution for every context, with some tokens impossible; callable like ``ToyModel.probs``."""

    vocab_size: int
    seed: int
    prob_of_zero: float = 0.0

    def __call__(self, context: tuple[int, ...]) -> list[float]:
        rng = np.random.default_rng([self.seed, len(context), *context])
        weights = rng.exponential(size=self.vocab_size) * (rng.random(self.vocab_size) >= self.prob_of_zero)
        weights[rng.integers(self.vocab_size)] += 0.1  # some token is always possible
        probs: list[float] = (weights / weights.sum()).tolist()
        return probs


class TableConstraint(Constraint):
    """A mask of its own for every path; a state that doesn't accept allows token 0, and forced tokens may be wrong."""

    seed: int
    prob_of_refusal: float = 0.5
    prob_of_end: float = 0.3

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return TableState(self, vocabulary.size, ())


@dataclass(frozen=True)
class TableState(ConstraintState):
    """The state of a table constraint after a path."""

    table: TableConstraint
    vocab_size: int
    path: tuple[int, ...]

    @property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.table.seed, len(self.path), *self.path])

    @property
    def is_accepting(self) -> bool:
        return bool(self.path and self._rng.random() < self.table.prob_of_end)

    def mask(self) -> torch.Tensor:
        draws = self._rng.random(self.vocab_size + 1)[1:]  # the first decides whether the text may end
        allowed = torch.from_numpy(draws >= self.table.prob_of_refusal)
        allowed[0] |= not self.is_accepting
        return allowed

    def advance(self, token: int) -> ConstraintState:
        return TableState(self.table, self.vocab_size, (*self.path, token))

    def forced(self) -> Sequence[int]:
        return [int(self._rng.integers(self.vocab_size)), 0]


def distributions(vocab_size: int) -> "st.SearchStrategy[TableDistribution]":
    """A hypothesis strategy: distributions with and without impossible tokens."""
    from hypothesis import strategies as st

    return st.builds(TableDistribution, st.just(vocab_size), st.integers(0, 9999), st.sampled_from([0.0, 0.3, 0.7]))


def shapes(max_depth: int = 3, max_draws: int = 4) -> "st.SearchStrategy[Shape]":
    """A hypothesis strategy: chains and trees with sampled and chosen draws, with and without replacement."""
    from hypothesis import strategies as st

    @st.composite
    def shape(draw: st.DrawFn, depth: int, room: list[int], replaces: bool) -> Shape:
        draws: list[tuple[Literal["sampled", "chosen"], Shape]] = []
        while depth and room[0] and draw(st.booleans()):
            room[0] -= 1
            below = draw(shape(depth - 1, room, replaces))
            draws.append(("sampled" if draw(st.integers(0, 2)) else "chosen", below))
        return Shape(tuple(draws), replaces)

    return st.booleans().flatmap(lambda replaces: shape(max_depth, [max_draws], replaces))


def trees(vocab_size: int = 6, max_nodes: int = 14) -> "st.SearchStrategy[DraftTree]":
    """A hypothesis strategy: trees of chosen candidates with any parents, roles and tokens."""
    from hypothesis import strategies as st

    @st.composite
    def tree(draw: st.DrawFn) -> DraftTree:
        drawn = DraftTree(draw(st.integers(0, vocab_size - 1)))
        for _ in range(draw(st.integers(0, max_nodes))):
            parent = draw(st.integers(0, len(drawn) - 1))
            role = Role(draw(st.integers(1, 7)))
            drawn.add(parent, draw(st.integers(0, vocab_size - 1)), role)
        return drawn

    return tree()
