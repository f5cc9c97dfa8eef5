"""Divides a draft tree between ranks: lookahead parallelism (Fu et al. 2024, §3.4) for any tree.

A rank forwards the nodes that it owns and their ancestors. A stretch of nodes in depth-first order needs only the
ancestors of its first node in addition, so little work is done twice. For lookahead's window, the stretches are the
columns, each with the part of level 0 that it attends to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.tree import ROOT


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's nodes of a tree.

    Attributes:
        nodes: ascending, each after its parent; every share has the stem, the nodes above the first fork.
        owned: the nodes whose logits the rank returns; each node has one owner.
    """

    nodes: tuple[int, ...]
    owned: frozenset[int]


def shares_of(parents: Sequence[int], depths: Sequence[int], num_ranks: int) -> tuple[Share, ...]:
    """Divide a tree into ``num_ranks`` shares, minimising the largest; the first rank owns the stem.

    A chain isn't divided: every rank forwards all of it, and needs no keys from the others.
    """
    children = _children(parents)
    stem = [ROOT]
    while len(children[stem[-1]]) == 1:
        stem.append(children[stem[-1]][0])
    order = _depth_first(children, parents)[len(stem) :]
    stretches = _stretches(order, depths, num_ranks) if order else []
    shares = []
    for rank in range(num_ranks):
        stretch = stretches[rank] if rank < len(stretches) else ()
        nodes, node = {*stem, *stretch}, stretch[0] if stretch else ROOT
        while node not in stem:
            nodes.add(node)
            node = parents[node]
        shares.append(Share(tuple(sorted(nodes)), frozenset(stretch if rank else (*stem, *stretch))))
    return tuple(shares)


def _children(parents: Sequence[int]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    return children


def _depth_first(children: Sequence[Sequence[int]], parents: Sequence[int]) -> list[int]:
    """Return all nodes depth-first, small subtrees first, so the nodes after a cut have few ancestors before it."""
    sizes = [1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        sizes[parents[node]] += sizes[node]
    order, waiting = list[int](), [ROOT]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += sorted(children[node], key=lambda child: (-sizes[child], -child))
    return order


def _stretches(order: Sequence[int], depths: Sequence[int], num_ranks: int) -> list[Sequence[int]]:
    """Cut an order into at most ``num_ranks`` stretches, minimising the largest, ancestors included."""
    least, enough = 1, len(order) + max(depths)
    while least < enough:
        limit = (least + enough) // 2
        if len(_cut(order, depths, limit)) <= num_ranks:
            enough = limit
        else:
            least = limit + 1
    return _cut(order, depths, least)


def _cut(order: Sequence[int], depths: Sequence[int], limit: int) -> list[Sequence[int]]:
    stretches, start = list[Sequence[int]](), 0
    while start < len(order):
        length = max(1, limit - depths[order[start]])
        stretches.append(order[start : start + length])
        start += length
    return stretches
