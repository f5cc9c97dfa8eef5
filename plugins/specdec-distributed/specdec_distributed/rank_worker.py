"""One rank's work in each pass: all ranks receive the same commands, and each forwards its own nodes.

With sharded tensors all ranks run the same passes, and the layers communicate. With a whole model on each rank, a rank
forwards its share of each draft tree, and the ranks exchange the keys and values of accepted nodes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar

import torch

from specdec.backends import Backend, Examination, KVBlock, Output, RecordedBackend
from specdec.layout import Compiler, Layout
from specdec.tree import ROOT, DraftTree
from specdec_distributed.ranks import Ranks
from specdec_distributed.shares import Share, shares_of

Place = tuple[int, int]  # (row of the pass, node of its tree)
SPOILED = -1  # in place of a node: the rank's logits of the row are NaN
_Flat = tuple[torch.Tensor, list[list[tuple[int, ...]]]]

_FEWEST_SHARED = 8  # nodes; dividing a smaller tree takes longer than forwarding it
_MOST_ALONE = 32  # nodes of an undivided pass that rank 0 forwards alone, since their keys are quick to send


class RankBackend(RecordedBackend):
    """A rank's own model, examined by all ranks at the same time."""

    is_alone: ClassVar[bool] = False
    keeps_states: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The facts about a draft tree that a layout depends on, which ranks send to each other."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    wanted: Sequence[int]

    @classmethod
    def of(cls, tree: DraftTree) -> "TreeShape":
        """Return the facts about a tree."""
        return cls(tree.tokens, tree.parents, tree.depths, tuple(tree.nodes_wanted()))

    def tree(self, nodes: Sequence[int], wanted: Sequence[int]) -> DraftTree:
        """Return the subtree of ``nodes``, ascending, with the logits of ``wanted`` requested."""
        place = {node: number for number, node in enumerate(nodes)}
        tree = DraftTree.of_candidates(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] if node else -1 for node in nodes],
            [self.depths[node] for node in nodes],
        )
        tree.wanted = [place[node] for node in wanted]
        return tree


class RankWorker:
    """One rank's backend, its share of the current pass, and the keys and values that it retains.

    Args:
        ranks: the group.
        backend: drives the rank's model, or its shard.
        examination: of the backend.
        is_sharded: each rank has a shard of the model.
        on_close: called after the backend is closed.
    """

    def __init__(
        self,
        ranks: Ranks,
        backend: Backend,
        examination: Examination,
        compiler: Compiler,
        is_sharded: bool,
        on_close: Callable[[], None],
    ) -> None:
        self.examination = examination
        self.backend, self.is_sharded, self._ranks, self._on_close = backend, is_sharded, ranks, on_close
        self._compiler = compiler
        self._shares: list[tuple[Share, ...]] = []  # by row of the last pass
        self.num_passes = 0
        self._is_rank_0s = False
        self._output: Output | None = None
        self._lengths: Sequence[int] = ()
        self._first = 0
        self._held: dict[int, KVBlock] = {}

    def close(self) -> None:
        """Close the backend and drop retained keys and values."""
        self._held.clear()
        self.backend.close()
        self._on_close()

    def forward(
        self,
        shapes: Sequence[TreeShape],
        lengths: Sequence[int],
        first: int,
        hidden: Sequence[int],
        layout: Layout | None = None,
    ) -> Output | None:
        """Run this rank's share of a pass; return its output by the share's nodes, or None without a share.

        ``layout`` is the whole pass's, on rank 0.
        """
        num_ranks = 1 if self.is_sharded else self._ranks.size
        self._shares = [_shares(shape, num_ranks) for shape in shapes]
        self._lengths, self._first = lengths, first
        self.num_passes += 1
        num_nodes = sum(len(shape.tokens) for shape in shapes)
        self._is_rank_0s = num_ranks > 1 and not self.is_shared and num_nodes <= _MOST_ALONE
        if self._is_rank_0s and not self._ranks.leads:  # another rank reading its weights would slow rank 0 down
            self._output = None
            return None
        if layout is None or self.is_shared:
            trees = [
                shape.tree(self._share_of(row).nodes, self._wanted(row, shape)) for row, shape in enumerate(shapes)
            ]
            layout = self._compiler.compile(trees, lengths, self.backend.shapes)
        self._output = self.backend.forward(replace(layout, first=first, hidden=tuple(hidden)))
        return self._output

    def _wanted(self, row: int, shape: TreeShape) -> Sequence[int]:
        """Return the nodes whose logits this rank computes: those that it owns, and the root, to detect NaN."""
        if self.is_sharded:  # layers exchange tensors of one shape on all ranks
            return shape.wanted
        owned = self._owned_of(row)
        own = [node for node in shape.wanted if node in owned]
        return own if self._ranks.leads and own else sorted({ROOT, *own})

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit paths of the last pass, as nodes of the whole trees, and fetch the keys that this rank lacks."""
        own, missing = list[list[int]](), dict[int, list[tuple[int, int, int]]]()
        for row, path in enumerate(paths):
            shares = self._shares[row]
            held = [len([*takewhile(set(share.nodes).__contains__, path)]) for share in shares]
            source, common = held.index(len(path)), 0 if self._is_rank_0s else min(held)
            is_source = (len(shares) == 1 and not self._is_rank_0s) or source == self._ranks.rank
            place = {node: number for number, node in enumerate(self._share_of(row).nodes)}
            own.append([place[node] for node in path[: None if is_source else common]])
            if common < len(path):
                start = self._lengths[row] + common
                missing.setdefault(source, []).append((self._first + row, start, self._lengths[row] + len(path)))
        if self._output is not None:
            self.backend.commit(own)
        for source, stretches in sorted(missing.items()):
            self._spread(source, stretches)

    def _spread(self, source: int, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Send one rank's keys and values to all others, through rank 0."""
        held: _Flat | None = None
        if source == self._ranks.rank:
            held = _flat([self.backend.copy_block(*stretch) for stretch in stretches])
        if self._ranks.leads:
            held = held or self._ranks.reply_of(source)
            self._ranks.broadcast(held, besides=source)
        elif held is not None:
            self._ranks.reply(held)
        else:
            held = self._ranks.receive()
        if source != self._ranks.rank:
            for (row, *_), each in zip(stretches, _parted(held), strict=True):
                self.backend.append_blocks(row, [each])

    @property
    def is_shared(self) -> bool:
        """True if the last pass was shared, so that each rank has a part of its output."""
        return any(len(shares) > 1 for shares in self._shares)

    def copy_block(self, number: int, row: int, start: int, stop: int) -> KVBlock:
        """Retain this rank's keys and values of a stretch of a row, under a number."""
        held = self._held[number] = self.backend.copy_block(row, start, stop)
        return held

    def append_blocks(self, row: int, numbers: Sequence[int]) -> None:
        """Append retained keys and values to a row, by their numbers."""
        self.backend.append_blocks(row, [self._held[number] for number in numbers])

    def drop(self, number: int) -> None:
        """Drop retained keys and values."""
        self._held.pop(number, None)

    def on_backend(self, method: str, *args: Any) -> Any:
        """Call a method of the rank's own backend."""
        return getattr(self.backend, method)(*args)

    def ids(self, num_top: int) -> dict[Place, int]:
        """Return the top-1 id at each node that this rank owns; its complement ``~id`` if the logits are NaN.

        A row whose root is NaN on this rank is reported under ``SPOILED``: its keys and values are NaN as well.
        """
        self._last.num_top = num_top
        found = {place: self._last.top_id(place[0], number) for place, number in self._own_places()}
        if not self._ranks.leads:
            spread = [row for row, shares in enumerate(self._shares) if len(shares) > 1]
            found.update({(row, SPOILED): 1 for row in spread if self._last.top_id(row, ROOT) < 0})
        return found

    def top(self, k: int) -> dict[Place, tuple[Any, Any]]:
        """Return the top-k ids and their probabilities, at the same nodes."""
        return self._at_own_places(*self._last.top(k))

    def top_logits(self, k: int) -> dict[Place, tuple[Any, Any]]:
        """Return the top-k ids and their logits, at the same nodes."""
        return self._at_own_places(*self._last.top_logits(k))

    def logits(self, places: Sequence[Place]) -> dict[Place, torch.Tensor]:
        """Return the logits at those of ``places`` that this rank owns, on the host."""
        own = dict(self._own_places())
        # Pickling a view sends its whole storage.
        return {place: self._last.at(place[0], own[place]).cpu().clone() for place in places if place in own}

    def hidden(self) -> dict[Place, torch.Tensor]:
        """The hidden states, ``(layers, size)``, at all nodes that this rank owns, on the host."""
        states = [row.cpu() for row in self._last.hidden]
        return {(row, node): states[row][number].clone() for row, node, number in self._owned()}

    @property
    def _last(self) -> Output:
        assert self._output is not None, "a pass has been run"
        return self._output

    def _share_of(self, row: int) -> Share:
        shares = self._shares[row]
        return shares[self._ranks.rank if len(shares) > 1 else 0]

    def _owned_of(self, row: int) -> frozenset[int]:
        """Return the nodes of a row that this rank owns; rank 0 owns all nodes of an undivided row."""
        is_owner = len(self._shares[row]) > 1 or self._ranks.leads
        return self._share_of(row).owned if is_owner else frozenset()

    def _owned(self) -> Iterator[tuple[int, int, int]]:
        """Yield (row, node, the node's number in this rank's tree) for each node that this rank owns."""
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


def _shares(shape: TreeShape, num_ranks: int) -> tuple[Share, ...]:
    """Return the tree's share for each rank; a single share for all ranks if the tree isn't divided."""
    if num_ranks > 1 and len(shape.tokens) >= _FEWEST_SHARED:
        shares = shares_of(shape.parents, shape.depths, num_ranks)
        if any(share.owned for share in shares[1:]):
            return shares
    every = range(len(shape.tokens))
    return (Share(tuple(every), frozenset(every)),)


def _flat(held: Sequence[KVBlock]) -> _Flat:
    """Flatten keys and values to one tensor, which is sent ten times as fast; return it with the parts' shapes."""
    numbers = torch.cat([part.flatten() for each in held for part in each.parts])
    return numbers.cpu(), [[(*part.shape,) for part in each.parts] for each in held]


def _parted(flat: _Flat) -> list[KVBlock]:
    numbers, shapes = flat
    parts = iter(torch.split(numbers, [math.prod(shape) for each in shapes for shape in each]))
    return [KVBlock(tuple(next(parts).view(shape) for shape in each)) for each in shapes]
