"""A rank's part in every pass: the same commands reach all ranks, and each does its own with them.

Where the model's matrices are sharded, all ranks run the same passes, and the layers talk to one another. Where every
rank has the whole model, each runs its share of a draft tree, and the keys and values of the accepted nodes go to those
that lack them.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

import torch

from specdec.backends.base import Held
from specdec.backends.hf import HFBackend
from specdec.backends.output import Output
from specdec.distributed.ranks import Ranks
from specdec.distributed.shares import Share, shares_of
from specdec.layout import Compiler, Layout
from specdec.tree import ROOT, DraftTree

Place = tuple[int, int]  # a row of the pass, and a node of its tree
SPOILED = -1  # in place of a node: the row is
_Flat = tuple[torch.Tensor, list[list[tuple[int, ...]]]]

_LEAST_SHARED = 8  # nodes: dividing fewer takes longer than forwarding them
_MOST_ALONE = 32  # nodes that rank 0 forwards alone where none are divided, since keys of so many are quickly sent


class RankBackend(HFBackend):
    """A rank's own model, examined by all ranks together."""

    is_alone: ClassVar[bool] = False

    def findings(self) -> dict[str, Hashable]:
        """The examination's findings, by name."""
        return {
            "shapes": str(replace(self.shapes, device=torch.device(self.shapes.device.type))),
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

    def tree(self, nodes: Sequence[int], wanted: Sequence[int]) -> DraftTree:
        """A tree of some of the nodes, ascending, of which some are wanted."""
        place = {node: number for number, node in enumerate(nodes)}
        tree = DraftTree.of_candidates(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] if node else -1 for node in nodes],
            [self.depths[node] for node in nodes],
        )
        tree.wanted = [place[node] for node in wanted]
        return tree


class Part:
    """One rank's backend, and what it does of a pass.

    Args:
        ranks: the group.
        backend: drives the model, or what this rank has of it.
        is_sharded: the model is spread over the ranks, and none has all of it.
        on_close: called once the backend is closed.
    """

    def __init__(
        self,
        ranks: Ranks,
        backend: RankBackend,
        compiler: Compiler,
        is_sharded: bool,
        on_close: Callable[[], None],
    ) -> None:
        self.backend, self.is_sharded, self._ranks, self._on_close = backend, is_sharded, ranks, on_close
        self._compiler = compiler
        self._shares: list[tuple[Share, ...]] = []  # by row of the last pass
        self.num_passes = 0
        self._is_rank_0s = False
        self._output: Output | None = None
        self._lengths: Sequence[int] = ()
        self._first = 0
        self._held: dict[int, Held] = {}

    def close(self) -> None:
        """Let go of the model."""
        self._held.clear()
        self.backend.close()
        self._on_close()

    def forward(
        self,
        shapes: Sequence[Shape],
        lengths: Sequence[int],
        first: int,
        hidden: Sequence[int],
        layout: Layout | None = None,
    ) -> Output | None:
        """Run this rank's share of a pass; its answers are addressed by the nodes of the share. None: it has none.

        ``layout``: of the whole pass, on the rank that has it.
        """
        num_ranks = 1 if self.is_sharded else self._ranks.size
        self._shares = [_shares(shape, num_ranks) for shape in shapes]
        self._lengths, self._first = lengths, first
        self.num_passes += 1
        num_nodes = sum(len(shape.tokens) for shape in shapes)
        self._is_rank_0s = num_ranks > 1 and not self.is_spread and num_nodes <= _MOST_ALONE
        if self._is_rank_0s and not self._ranks.leads:  # it would only take memory's time from rank 0
            self._output = None
            return None
        if layout is None or self.is_spread:
            trees = [
                shape.tree(self._share_of(row).nodes, self._wanted(row, shape)) for row, shape in enumerate(shapes)
            ]
            layout = self._compiler.compile(trees, lengths, self.backend.shapes)
        self._output = self.backend.forward(replace(layout, first=first, hidden=tuple(hidden)))
        return self._output

    def _wanted(self, row: int, shape: Shape) -> Sequence[int]:
        """The nodes of this rank's tree whose logits are read: those that it owns, and the root for ``spoiled``."""
        if self.is_sharded:  # the layers' talk has the same shape on all ranks
            return shape.wanted
        owned = self._owned_of(row)
        own = [node for node in shape.wanted if node in owned]
        return own if self._ranks.leads and own else sorted({ROOT, *own})

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit paths of the last pass, in nodes of the whole trees; what this rank lacks comes from another."""
        kept, missing = list[list[int]](), dict[int, list[tuple[int, int, int]]]()
        for row, path in enumerate(paths):
            shares = self._shares[row]
            held = [len([*takewhile(set(share.nodes).__contains__, path)]) for share in shares]
            source, common = held.index(len(path)), 0 if self._is_rank_0s else min(held)
            is_source = (len(shares) == 1 and not self._is_rank_0s) or source == self._ranks.rank
            place = {node: number for number, node in enumerate(self._share_of(row).nodes)}
            kept.append([place[node] for node in path[: None if is_source else common]])
            if common < len(path):
                start = self._lengths[row] + common
                missing.setdefault(source, []).append((self._first + row, start, self._lengths[row] + len(path)))
        if self._output is not None:
            self.backend.keep(kept)
        for source, stretches in sorted(missing.items()):
            self._spread(source, stretches)

    def _spread(self, source: int, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Give keys and values that one rank has to all others, by way of rank 0."""
        held: _Flat | None = None
        if source == self._ranks.rank:
            held = _flat([self.backend.hold(*stretch) for stretch in stretches])
        if self._ranks.leads:
            held = held or self._ranks.answer_of(source)
            self._ranks.tell(held, besides=source)
        elif held is not None:
            self._ranks.answer(held)
        else:
            held = self._ranks.hear()
        if source != self._ranks.rank:
            for (row, *_), each in zip(stretches, _parted(held), strict=True):
                self.backend.put(row, [each])

    @property
    def is_spread(self) -> bool:
        """True where the last pass was shared, so that other ranks have some of its answers."""
        return any(len(shares) > 1 for shares in self._shares)

    def hold(self, number: int, row: int, start: int, stop: int) -> Held:
        """Copy this rank's keys and values of a stretch of a row, under a number."""
        held = self._held[number] = self.backend.hold(row, start, stop)
        return held

    def put(self, row: int, numbers: Sequence[int]) -> None:
        """Commit copies, by their numbers, behind a row's tokens."""
        self.backend.put(row, [self._held[number] for number in numbers])

    def drop(self, number: int) -> None:
        """Let go of a copy."""
        self._held.pop(number, None)

    def on_backend(self, method: str, *args: Any) -> Any:
        """Call a method of the rank's own backend."""
        return getattr(self.backend, method)(*args)

    def ids(self, num_top: int) -> dict[Place, int]:
        """The greatest logit's id at each node that this rank answers for; its complement where that is no number.

        A row of which this rank's part is no numbers is named as well: its keys and values aren't, either.
        """
        self._last.num_top = num_top
        found = {place: self._last.top_id(place[0], number) for place, number in self._own_places()}
        if not self._ranks.leads:
            spread = [row for row, shares in enumerate(self._shares) if len(shares) > 1]
            found.update({(row, SPOILED): 1 for row in spread if self._last.top_id(row, ROOT) < 0})
        return found

    def top(self, k: int) -> dict[Place, tuple[Any, Any]]:
        """The likeliest ids and their probabilities, at the same nodes."""
        return self._at_own_places(*self._last.top(k))

    def top_logits(self, k: int) -> dict[Place, tuple[Any, Any]]:
        """The ids of the greatest logits and these, at the same nodes."""
        return self._at_own_places(*self._last.top_logits(k))

    def logits(self, places: Sequence[Place]) -> dict[Place, torch.Tensor]:
        """The logits at those of some nodes that this rank answers for, on the host."""
        own = dict(self._own_places())
        # A view would be sent with all that it is a view of.
        return {place: self._last.at(place[0], own[place]).cpu().clone() for place in places if place in own}

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

    def _owned_of(self, row: int) -> frozenset[int]:
        """The nodes of a row that this rank owns: of one that isn't divided rank 0 has all."""
        is_answering = len(self._shares[row]) > 1 or self._ranks.leads
        return self._share_of(row).owned if is_answering else frozenset()

    def _owned(self) -> Iterator[tuple[int, int, int]]:
        """Row, node, and the node's number in this rank's tree, of all nodes that it owns."""
        for row in range(len(self._shares)):
            nodes, owned = self._share_of(row).nodes, self._owned_of(row)
            yield from ((row, node, number) for number, node in enumerate(nodes) if node in owned)

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


def _flat(held: Sequence[Held]) -> _Flat:
    """Keys and values as one tensor, which is sent in a tenth of the time, and the shapes of its parts."""
    numbers = torch.cat([part.flatten() for each in held for part in each.parts])
    return numbers.cpu(), [[(*part.shape,) for part in each.parts] for each in held]


def _parted(flat: _Flat) -> list[Held]:
    numbers, shapes = flat
    parts = iter(torch.split(numbers, [math.prod(shape) for each in shapes for shape in each]))
    return [Held(tuple(next(parts).view(shape) for shape in each)) for each in shapes]
