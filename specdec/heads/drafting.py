"""Drafting with a head over pairs: EAGLE-2's dynamic trees (arXiv 2406.16858).

What a tree appends lies after a cache's pairs and is overwritten, so a rejected branch needs no rollback. Requests of
any lengths run in one pass. Trees are built on the host, which has each level's candidates after its pass, unless the
runner drafts all levels in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.first_pass import first_pass, new_pairs
from specdec.heads.pair_cache import PairCache

# The noise of the position after a number of drafted tokens.
NoiseAt = Callable[[int], Noise | None]
# The children of fed nodes: called with what a pass returned and the nodes' candidates, (requests, nodes), -1 for the
# root; returns tokens and log-probabilities, (requests, nodes, children).
Choose = Callable[[Continuations, np.ndarray], tuple[np.ndarray, np.ndarray]]


class DraftedTrees(NamedTuple):
    """Draft trees of several requests, all with the same number of nodes; parents precede their children.

    Attributes:
        tokens: (requests, nodes) target ids.
        parents: (requests, nodes) indices of nodes; -1 for children of the root.
        log_probs: (requests, nodes) the head's log-probability of the path to each node.
    """

    tokens: np.ndarray
    parents: np.ndarray
    log_probs: np.ndarray


class DraftSize(NamedTuple):
    """The size of a draft's levels; the first has ``num_children`` nodes.

    Attributes:
        width: nodes of a level that are fed, the most probable.
        num_children: of each of them, at least ``width``.
        num_levels: including the first.
    """

    width: int
    num_children: int
    num_levels: int


class WholeDrafts(HeadRunner):
    """A runner that drafts all levels in one call."""

    @abstractmethod
    def draft(self, pairs: Pairs, caches: Sequence[PairCache], size: DraftSize, noise: Noise | None) -> DraftedTrees:
        """Append pairs to the caches, and return the candidates of all levels after the last pair of each request.

        Args:
            pairs: of ``new_pairs``.
            caches: one per request.
            size: of the draft.
            noise: of each level.
        """


def grow(
    runner: HeadRunner,
    caches: Sequence[PairCache],
    states: Sequence[torch.Tensor],
    tokens: Sequence[Sequence[int]],
    width: int,
    depth: int,
    num_nodes: int,
) -> DraftedTrees:
    """Append pairs to the caches and grow a tree after the last pair of each request.

    The first level has the ``width`` most probable tokens. Each of ``depth`` further levels feeds the ``width`` best
    nodes of the level before, and adds the ``width`` most probable children of each. The ``num_nodes`` nodes whose
    paths are most probable are returned, in the order of their creation.

    Args:
        runner: runs the head, with at least ``width`` tokens after each pair.
        caches, states, tokens: as for ``TreeGrowth``.
        width: nodes fed per level, and children of each.
        depth: levels after the first.
        num_nodes: size of each tree, at most ``width + depth * width ** 2``.
    """
    growth = begin(runner, caches, states, tokens, size=DraftSize(width, width, depth + 1))
    for _ in range(depth):
        growth.feed()
    return growth.best(num_nodes)


def first_returned(num_children: int) -> Choose:
    """Return the choice of the most probable children, of a runner that returns these first."""
    return lambda found, _: (found.tokens[..., :num_children], found.log_probs[..., :num_children])


def begin(
    runner: HeadRunner,
    caches: Sequence[PairCache],
    states: Sequence[torch.Tensor],
    tokens: Sequence[Sequence[int]],
    noise: NoiseAt = lambda _: None,
    *,
    size: DraftSize,
) -> "DraftGrowth":
    """Append pairs to the caches and draft the first level after the last of them; the arguments are ``TreeGrowth``'s.

    The children of a node are the most probable tokens. At most ``size.num_levels - 1`` levels may be fed.
    """
    if not isinstance(runner, WholeDrafts):
        return tree_growth(runner, caches, states, tokens, size.width, noise, first_returned(size.num_children))
    joined = Noise.joined(map(noise, range(size.num_levels)))
    return WholeDraft(runner.draft(new_pairs(caches, states, tokens), caches, size, joined), size)


class GrowingRunner(HeadRunner):
    """A runner whose trees don't grow by a pass for each level."""

    growth: ClassVar["type[TreeGrowth]"]


def tree_growth(
    runner: HeadRunner,
    caches: Sequence[PairCache],
    states: Sequence[torch.Tensor],
    tokens: Sequence[Sequence[int]],
    width: int,
    noise: NoiseAt,
    choose: Choose,
) -> "TreeGrowth":
    """Begin trees that grow as the runner's do; the arguments are ``TreeGrowth``'s."""
    kind = runner.growth if isinstance(runner, GrowingRunner) else TreeGrowth
    return kind(runner, caches, states, tokens, width, noise, choose)


class DraftGrowth(ABC):
    """Draft trees of several requests, which grow by a level with each ``feed``.

    Args:
        first: the candidates of the first level.

    Attributes:
        runs_passes: each ``feed`` runs a pass of the head.
    """

    runs_passes: bool = True

    def __init__(self, first: DraftedTrees) -> None:
        self._levels = [first]

    @property
    def next_log_probs(self) -> np.ndarray:
        """(requests,) the log-probability of the best path that the next ``feed`` continues."""
        best: np.ndarray = self._levels[-1].log_probs.max(1)
        return best

    @abstractmethod
    def feed(self) -> None:
        """Feed the best candidates of the last level; append their children."""

    def best(self, num_nodes: int) -> DraftedTrees:
        """Return the candidates with the most probable paths, all if there are fewer."""
        every = DraftedTrees(*(np.concatenate(of_levels, 1) for of_levels in zip(*self._levels, strict=True)))
        num_all = every.tokens.shape[1]
        if num_nodes >= num_all:
            return every
        # A stable sort: of equal paths the older is kept, so no child without its parent.
        kept = np.sort((-every.log_probs).argsort(1, kind="stable")[:, :num_nodes], 1)
        rows = np.arange(len(kept))[:, None]
        place = np.full((len(kept), num_all + 1), -1)  # of -1, at the end, too
        place[rows, kept] = np.arange(num_nodes)
        tokens, parents, log_probs = (each[rows, kept] for each in every)
        return DraftedTrees(tokens, place[rows, parents], log_probs)


class WholeDraft(DraftGrowth):
    """Draft trees whose levels have all been drafted.

    Args:
        every: the candidates of all levels.
        size: of the levels.
    """

    runs_passes = False

    def __init__(self, every: DraftedTrees, size: DraftSize) -> None:
        stops = size.num_children * (1 + size.width * np.arange(size.num_levels - 1))
        levels = zip(*(np.split(each, stops, 1) for each in every), strict=True)
        self._later = (DraftedTrees(*level) for level in levels)
        super().__init__(next(self._later))

    def feed(self) -> None:
        self._levels.append(next(self._later))


class TreeGrowth(DraftGrowth):
    """Draft trees which grow by a pass with each ``feed``.

    The first pass appends the given pairs to the caches and drafts the first level after the last of them.

    Args:
        runner: runs the head.
        caches: one per request.
        states: (n, states size) per request, the target's states at positions i of the new pairs, at least one.
        tokens: n per request, the tokens at positions i + 1.
        width: nodes fed per level.
        noise: added to the logits before candidates are chosen; by default none.
        choose: returns the children of each fed node, at least ``width``; by default all that the runner returns.
    """

    def __init__(
        self,
        runner: HeadRunner,
        caches: Sequence[PairCache],
        states: Sequence[torch.Tensor],
        tokens: Sequence[Sequence[int]],
        width: int,
        noise: NoiseAt = lambda _: None,
        choose: Choose | None = None,
    ) -> None:
        self._runner, self.width, self._noise = runner, width, noise
        self._choose = choose or first_returned(runner.num_tokens)
        self._rows = np.arange(len(caches))[:, None]
        found = self._begin(caches, states, tokens)
        drafted, log_probs = (each[:, 0] for each in self._choose(found, np.full_like(self._rows, -1)))
        super().__init__(DraftedTrees(drafted, np.full_like(drafted, -1), log_probs))
        self._num_earlier = 0  # candidates of the levels before the last
        self._fed = (-log_probs).argsort(1, kind="stable")[:, :width]  # of the last level, fed next
        self._features = found.features.expand(-1, width, -1)

    def _begin(
        self, caches: Sequence[PairCache], states: Sequence[torch.Tensor], tokens: Sequence[Sequence[int]]
    ) -> Continuations:
        """Append the given pairs to the caches; return what follows the last of each request, (requests, 1, k)."""
        found, self._cache, self.lengths = first_pass(self._runner, caches, states, tokens, self._noise(0))
        self._visible = self._visible_at_first()
        return found

    def _visible_at_first(self) -> np.ndarray | None:
        """Return the mask of the nodes to be fed, by slot; None for paths, whose nodes attend to all before them."""
        if self.width == 1:
            return None
        visible = np.arange(self._cache.keys.shape[2]) < self.lengths[:, None]
        return np.repeat(visible[:, None], self.width, 1)

    def feed(self) -> None:
        last, requests = self._levels[-1], len(self._rows)
        fed = self._num_earlier + self._fed
        found = self._continue(last.tokens[self._rows, self._fed], self._features)
        tokens, log_probs = self._choose(found, fed)
        num_children = tokens.shape[-1]
        children = (log_probs + last.log_probs[self._rows, self._fed][..., None]).reshape(requests, -1)
        level = DraftedTrees(tokens.reshape(requests, -1), fed.repeat(num_children, 1), children)
        self._num_earlier += last.tokens.shape[1]
        self._levels.append(level)
        self._fed = (-children).argsort(1, kind="stable")[:, : self.width]
        self._features = found.features
        if self.width > 1:
            self._select(self._fed // num_children)

    def _continue(self, tokens: np.ndarray, features: torch.Tensor) -> Continuations:
        """Return what follows the fed nodes, of tokens (requests, width) and features (requests, width, hidden)."""
        width, num_levels = self.width, len(self._levels)
        starts = self.lengths + (num_levels - 1) * width
        self._make_room(int(starts.max()) + width)
        positions = (self.lengths + num_levels - 1)[:, None].repeat(width, 1)
        if self._visible is not None:
            own = np.arange(width)
            self._visible[self._rows, own, starts[:, None] + own] = True
        pairs = Pairs(tokens, positions, starts, features, visible=self._visible)
        return self._runner.run(pairs, self._cache, self._noise(num_levels))

    def _select(self, parents: np.ndarray) -> None:
        """Keep the features of the nodes to be fed, whose parents, (requests, width), are of the nodes last fed."""
        indices = torch.from_numpy(parents).to(self._features.device)[..., None]
        self._features = self._features.gather(1, indices.expand(-1, -1, self._features.shape[-1]))
        if self._visible is not None:
            self._visible = self._visible[self._rows, parents]

    def _make_room(self, num_slots: int) -> None:
        """Reserve more slots if there are fewer; what was fed so far stays in its slots."""
        if num_slots <= self._cache.keys.shape[2]:
            return
        more = self._runner.num_slots(num_slots) - self._cache.keys.shape[2]
        self._cache = KeyValues(*(torch.nn.functional.pad(each, (0, 0, 0, more)) for each in self._cache))
        if self._visible is not None:
            self._visible = np.pad(self._visible, ((0, 0), (0, 0), (0, more)))
