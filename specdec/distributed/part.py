"""A rank's part in every pass: the same commands reach all ranks, and each does its own with them.

Where the model's matrices are sharded, all ranks run the same passes, and the layers talk to one another. Where every
rank has the whole model, each runs its share of a draft tree, and the keys and values of the accepted nodes go to those
that lack them.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

import torch

from specdec.backends.base import Held, Output
from specdec.backends.hf import HFBackend
from specdec.distributed.ranks import Ranks
from specdec.distributed.shares import Share, shares_of
from specdec.layout import Compiler
from specdec.tree import ROOT, DraftTree

Place = tuple[int, int]  # a row of the pass, and a node of its tree

_LEAST_SHARED = 8  # nodes: dividing fewer takes longer than forwarding them


class RankBackend(HFBackend):
    """A rank's own model. It is examined without a clock, so that all ranks do the same while they do it together."""

    takes_shards: ClassVar[bool] = True
    is_timed: ClassVar[bool] = False

    def findings(self) -> dict[str, Hashable]:
        """What the examination has found, by name."""
        return {
            "facts": str(self.shapes),
            "reason against trees": self.reason,
            "reason against exact numerics": self.inexact,
            "deviation": str(self.deviation),
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """A draft tree as ranks tell it one another: whatever a layout depends on."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    wanted: Sequence[int]

    @classmethod
    def of(cls, tree: DraftTree) -> "Shape":
        """The shape of a tree."""
        return cls(tree.tokens, tree.parents, tree.depths, tuple(tree.nodes_wanted()))

    def tree(self, nodes: Sequence[int] | None = None, wanted: Sequence[int] | None = None) -> DraftTree:
        """A tree of this shape, or of some of its nodes, ascending, of which some are wanted."""
        nodes = range(len(self.tokens)) if nodes is None else nodes
        place = {node: number for number, node in enumerate(nodes)}
        tree = DraftTree.of_candidates(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] if node else -1 for node in nodes],
            [self.depths[node] for node in nodes],
        )
        tree.wanted = [place[node] for node in (self.wanted if wanted is None else wanted)]
        return tree


class Part:
    """One rank's backend, and what it does of a pass.

    Args:
        ranks: the group.
        backend: drives the model, or what this rank has of it.
        is_sharded: the model is spread over the ranks, and none has all of it.
    """

    def __init__(self, ranks: Ranks, backend: RankBackend, compiler: Compiler, is_sharded: bool) -> None:
        self.backend, self.is_sharded, self._ranks = backend, is_sharded, ranks
        self._compiler = compiler
        self._shares: list[tuple[Share, ...]] = []  # by row of the last pass
        self._output: Output | None = None
        self._lengths: Sequence[int] = ()
        self._first = 0

    def forward(self, shapes: Sequence[Shape], lengths: Sequence[int], first: int, hidden: Sequence[int]) -> Output:
        """Run this rank's share of a pass; its answers are addressed by the nodes of the share."""
        num_ranks = 1 if self.is_sharded else self._ranks.size
        self._shares = [_shares(shape, num_ranks) for shape in shapes]
        trees = []
        for row, shape in enumerate(shapes):
            share = self._share_of(row)
            trees.append(shape.tree(share.nodes, [node for node in shape.wanted if node in share.owned] or [ROOT]))
        layout = self._compiler.compile(trees, lengths, self.backend.shapes)
        self._lengths, self._first = lengths, first
        self._output = self.backend.forward(replace(layout, first=first, hidden=tuple(hidden)))
        return self._output

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit paths of the last pass, in nodes of the whole trees; what this rank lacks comes from another."""
        kept, missing = list[list[int]](), dict[int, list[tuple[int, int, int]]]()
        for row, path in enumerate(paths):
            shares = self._shares[row]
            held = [len([*takewhile(set(share.nodes).__contains__, path)]) for share in shares]
            source, common = held.index(len(path)), min(held)
            is_source = len(shares) == 1 or source == self._ranks.rank
            place = {node: number for number, node in enumerate(self._share_of(row).nodes)}
            kept.append([place[node] for node in path[: None if is_source else common]])
            if common < len(path):
                start = self._lengths[row] + common
                missing.setdefault(source, []).append((self._first + row, start, self._lengths[row] + len(path)))
        self.backend.keep(kept)
        for source, stretches in sorted(missing.items()):
            self._spread(source, stretches)

    def _spread(self, source: int, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Give keys and values that one rank has to all others, by way of rank 0."""
        held: list[Held] | None = None
        if source == self._ranks.rank:
            held = [self.backend.hold(*stretch) for stretch in stretches]
        if self._ranks.leads:
            held = held or self._ranks.answer_of(source)
            self._ranks.tell(held, besides=source)
        elif held is not None:
            self._ranks.answer(held)
        else:
            held = self._ranks.hear()
        if source != self._ranks.rank:
            for (row, *_), each in zip(stretches, held, strict=True):
                self.backend.put(row, [each])

    @property
    def is_spread(self) -> bool:
        """True where the last pass was shared, so that other ranks have some of its answers."""
        return any(len(shares) > 1 for shares in self._shares)

    def on_backend(self, method: str, *args: Any) -> Any:
        """Call a method of the rank's own backend."""
        return getattr(self.backend, method)(*args)

    def ids(self, num_top: int) -> dict[Place, int]:
        """The greatest logit's id at each node that this rank answers for; its complement where that is no number."""
        self._last.num_top = num_top
        return {place: self._last.greatest(place[0], number) for place, number in self._own_places()}

    def top(self, k: int) -> dict[Place, tuple[Any, Any]]:
        """The likeliest ids and their probabilities, at the same nodes."""
        return self._at_own_places(*self._last.top(k))

    def top_logits(self, k: int) -> dict[Place, tuple[Any, Any]]:
        """The ids of the greatest logits and these, at the same nodes."""
        return self._at_own_places(*self._last.top_logits(k))

    def logits(self, places: Sequence[Place]) -> dict[Place, torch.Tensor]:
        """The logits at those of some nodes that this rank answers for, on the host."""
        own = dict(self._own_places())
        return {place: self._last.at(place[0], own[place]).cpu() for place in places if place in own}

    def hidden(self, layer: int) -> dict[Place, torch.Tensor]:
        """The hidden states of a layer at all nodes that this rank owns, on the host."""
        states = self._last.hidden[layer].cpu()
        return {(row, node): states[row, number].clone() for row, node, number in self._owned()}

    @property
    def _last(self) -> Output:
        assert self._output is not None, "a pass has been run"
        return self._output

    def _share_of(self, row: int) -> Share:
        shares = self._shares[row]
        return shares[self._ranks.rank if len(shares) > 1 else 0]

    def _owned(self) -> Iterator[tuple[int, int, int]]:
        """Row, node, and the node's number in this rank's tree, of all nodes that it owns."""
        for row in range(len(self._shares)):
            share = self._share_of(row)
            yield from ((row, node, number) for number, node in enumerate(share.nodes) if node in share.owned)

    def _own_places(self) -> Iterator[tuple[Place, int]]:
        known = self._last.column_of
        return (((row, node), number) for row, node, number in self._owned() if number in known)

    def _at_own_places(self, ids: list[Any], values: list[Any]) -> dict[Place, tuple[Any, Any]]:
        column = self._last.column_of
        return {
            place: (ids[place[0]][column[number]], values[place[0]][column[number]])
            for place, number in self._own_places()
        }


def _shares(shape: Shape, num_ranks: int) -> tuple[Share, ...]:
    """The shares of a tree; one of them, for all ranks, where it isn't divided."""
    if num_ranks > 1 and len(shape.tokens) >= _LEAST_SHARED:
        shares = shares_of(shape.parents, shape.depths, num_ranks)
        if any(share.owned for share in shares[1:]):
            return shares
    every = range(len(shape.tokens))
    return (Share(tuple(every), frozenset(every)),)
