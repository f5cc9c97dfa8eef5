"""Draft trees: the one representation of everything a proposer can suggest.

Node 0 is the root, the last committed token. A node's position is the root's plus its depth; it attends to the whole
prefix, its ancestors and itself. A chain is a tree with one branch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from operator import index
from typing import NamedTuple, Self

import torch

from specdec.errors import PluginError, plural

ROOT = 0
_LAW_TOLERANCE = 1e-5  # float32 rounding over a large vocabulary; a forgotten renormalisation is far beyond


class Role(IntFlag):
    """The purpose of a node; a merged node carries the roles of all its origins."""

    CANDIDATE = 1  # may be accepted
    PROBE = 2  # its prediction is wanted by the proposer
    SUPPORT = 4  # only there to be attended to


class Draw(NamedTuple):
    """The origin of a candidate: drawn from a distribution, or chosen.

    ``q`` is the distribution that it was drawn from, shape ``(vocab,)``, conditional on its path and on its parent's
    earlier draws; ``None`` means that it was simply chosen (a one-hot q).
    """

    child: int
    q: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The size that a draft tree may have in one step.

    ``num_nodes`` (the root not counted) and ``depth`` (deeper nodes would leave the model's positions) are limits.
    ``num_tokens`` is advice: no more than this many tokens can still be emitted, so a deeper candidate is wasted.
    """

    num_nodes: int
    depth: int
    num_tokens: int


class DraftTree:
    """An append-only trie: one node per distinct path below the root.

    Adding a token twice below one parent gives the same node, with the roles united and both draws recorded.

    Attributes:
        draws: by parent, in the order in which a rule is to try them.
        wanted: the nodes whose logits are read, ascending; None, as a proposer leaves it, for the root, candidates and
            probes. The core sets it by what the proposer declared that it wants.
        named_by: of the nodes that a merge of strategies chose, the names of those that named the token there.
        chances: of the same nodes, the chance that each is right if its parent is.
        sources: the trees that ``graft`` copied nodes from, each with the place that its nodes have here.
        has_true_laws: every draw's q is the distribution that it was drawn from. A proposer that drops or re-ranks
            *sampled* nodes by what was drawn must set this to False; rules that read q then leave the tree to
            ``match``.
    """

    __slots__ = (
        "_index",
        "chances",
        "depths",
        "draws",
        "has_true_laws",
        "named_by",
        "parents",
        "roles",
        "sources",
        "tokens",
        "wanted",
    )

    def __init__(self, root: int) -> None:
        self.tokens: list[int] = [root]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        self.roles: list[Role] = [Role.CANDIDATE]
        self.draws: dict[int, list[Draw]] = {}
        self.has_true_laws = True
        self.wanted: Sequence[int] | None = None
        self.named_by: dict[int, tuple[str, ...]] = {}
        self.chances: dict[int, float] = {}
        self.sources: list[tuple[DraftTree, Mapping[int, int]]] = []
        self._index: dict[tuple[int, int], int] = {}

    @classmethod
    def of_candidates(cls, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Self:
        """A tree of chosen tokens, the root first, each behind its parent and no two the same below one."""
        tree = cls(tokens[ROOT])
        tree.tokens, tree.parents, tree.depths = [*map(index, tokens)], list(parents), list(depths)
        tree.roles = [Role.CANDIDATE] * len(tree.tokens)
        for node in range(1, len(tree.tokens)):
            parent = parents[node]
            tree._index[parent, tree.tokens[node]] = node
            tree.draws.setdefault(parent, []).append(Draw(node))
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"DraftTree(tokens={self.tokens}, parents={self.parents})"

    def add(self, parent: int, token: int, role: Role = Role.CANDIDATE, q: torch.Tensor | None = None) -> int:
        """The node for ``token`` below ``parent``, new or merged into an equal one; a candidate's draw is recorded.

        Raises:
            IndexError: for a parent that isn't there.
        """
        node = self._place(parent, token, role)
        if role & Role.CANDIDATE:
            self.draws.setdefault(parent, []).append(Draw(node, q))
        return node

    def _place(self, parent: int, token: int, role: Role) -> int:
        token = index(token)  # a float or a tensor of one is refused here, by its type
        node = self._index.get((parent, token))
        if node is not None:
            self.roles[node] |= role
            return node
        if not 0 <= parent < len(self):
            raise IndexError(f"no node {parent} to add below: this tree's go from 0 to {len(self) - 1}")
        node = self._index[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.roles.append(role)
        return node

    def add_chain(self, parent: int, tokens: Iterable[int], role: Role = Role.CANDIDATE) -> list[int]:
        """A chain of tokens below ``parent``; returns its nodes, nearest first."""
        nodes = []
        for token in tokens:
            parent = self.add(parent, token, role)
            nodes.append(parent)
        return nodes

    @property
    def has_sampled_draws(self) -> bool:
        """True if any candidate was drawn from a distribution, and not simply chosen."""
        return any(draw.q is not None for draws in self.draws.values() for draw in draws)

    def child(self, node: int, token: int) -> int | None:
        """The candidate for ``token`` below ``node``, or None."""
        found = self._index.get((node, token))
        return found if found is not None and self.roles[found] & Role.CANDIDATE else None

    def path(self, node: int) -> list[int]:
        """The tokens from below the root to ``node``."""
        return [self.tokens[ancestor] for ancestor in self.lineage(node)[1:]]

    def lineage(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to ``node``, both included."""
        nodes = [node]
        while nodes[-1] != ROOT:
            nodes.append(self.parents[nodes[-1]])
        return tuple(reversed(nodes))

    def nodes_with(self, role: Role) -> list[int]:
        """The nodes, the root aside, that carry any of the given roles."""
        flags = int(role)  # enum's own operators take a microsecond each
        return [node for node, own in enumerate(map(int, self.roles)) if own & flags and node != ROOT]

    def nodes_wanted(self) -> Sequence[int]:
        """The nodes whose logits are read, ascending."""
        return [ROOT, *self.nodes_with(Role.CANDIDATE | Role.PROBE)] if self.wanted is None else self.wanted

    @property
    def is_chain(self) -> bool:
        """True if no node has two children."""
        return self.parents == list(range(-1, len(self) - 1))

    def graft(self, tree: "DraftTree", nodes: Iterable[int], onto: Mapping[int, int]) -> Mapping[int, int]:
        """Copy nodes of another tree, with their draws, and note where they went: the one way to rebuild a tree.

        Args:
            tree: where the nodes come from.
            nodes: ascending, each behind its parent.
            onto: the place here of nodes that need no copy, such as the root.

        Returns:
            The place here of each node; a copy that meets an equal node becomes one with it.
        """
        place = dict(onto)
        for node in nodes:
            if node not in place:
                place[node] = self._place(place[tree.parents[node]], tree.tokens[node], tree.roles[node])
        for parent, draws in tree.draws.items():
            kept = [Draw(place[draw.child], draw.q) for draw in draws if draw.child in place]
            if kept:
                self.draws.setdefault(place[parent], []).extend(kept)
        self.sources.append((tree, place))
        return place

    def place_of(self, source: "DraftTree") -> Mapping[int, int] | None:
        """Return the place here of each node of a tree that this one was made of, None for any other tree."""
        if source is self:
            return {node: node for node in range(len(self))}
        for tree, place in self.sources:
            inner = tree.place_of(source)
            if inner is not None:
                return {node: place[between] for node, between in inner.items() if between in place}
        return None

    def part(self, nodes: Iterable[int]) -> "DraftTree":
        """A tree of some nodes, ascending, each behind its parent; the root is always one of them.

        Where sampled nodes were left out, what is left no longer has true laws.
        """
        part = DraftTree(self.tokens[ROOT])
        place = part.graft(self, nodes, {ROOT: ROOT})
        part.has_true_laws = self.has_true_laws and (len(place) == len(self) or not self.has_sampled_draws)
        return part

    def below(self, trunk: Sequence[int]) -> "DraftTree":
        """The whole tree below a chain of committed tokens."""
        if not trunk:
            return self
        grown = DraftTree(trunk[0])
        last = grown.add_chain(ROOT, trunk[1:], Role.SUPPORT)[-1:] or [ROOT]
        root = grown._place(last[0], self.tokens[ROOT], self.roles[ROOT])
        place = grown.graft(self, range(1, len(self)), {ROOT: root})
        grown.wanted = [place[node] for node in self.nodes_wanted()]
        return grown

    def longest_chain(self) -> "DraftTree":
        """The path to the deepest candidate (the first of equals), for models that take chains only."""
        if self.is_chain:
            return self
        candidates = self.nodes_with(Role.CANDIDATE)
        node = max(candidates, key=lambda node: (self.depths[node], -node), default=ROOT)
        return self.part(self.lineage(node))

    def check(self, root: int, vocab_size: int, budget: Budget, author: str) -> None:
        """Refuse a tree that breaks a proposer's laws.

        Raises:
            PluginError: naming ``author``, the law and the offending node.
        """

        def refuse(fault: str) -> PluginError:
            return _refusal(author, fault)

        if self.tokens[ROOT] != root:
            raise refuse(f"its root is token {self.tokens[ROOT]}, but the last committed token is {root}")
        if not len(self.tokens) == len(self.parents) == len(self.depths) == len(self.roles):
            raise refuse(
                "its lists of tokens, parents, depths and roles differ in length, so they were not made by add()"
            )
        if len(self) - 1 > budget.num_nodes:
            raise refuse(f"{plural(len(self) - 1, 'node')} below the root, but the budget is {budget.num_nodes}")
        for node in range(1, len(self)):
            token, parent = self.tokens[node], self.parents[node]
            if not 0 <= token < vocab_size:
                raise refuse(f"node {node} has token {token}, outside the vocabulary of {vocab_size}")
            is_placed = 0 <= parent < node and self.depths[node] == self.depths[parent] + 1
            if not is_placed or self._index.get((parent, token)) != node:
                raise refuse(f"node {node} below {parent} was not made by add(), which keeps parents before children")
            if self.depths[node] > budget.depth:
                raise refuse(f"node {node} is {self.depths[node]} deep, but the budget allows {budget.depth}")

    def check_draws(self, vocab_size: int, author: str) -> None:
        """Refuse draws that can't have come from the laws they carry; for rules that read those.

        Raises:
            PluginError: naming ``author``, the law and the offending node.
        """
        for parent, draws in self.draws.items():
            for draw in draws:
                is_placed = 0 < draw.child < len(self) and self.parents[draw.child] == parent
                if not is_placed or not self.roles[draw.child] & Role.CANDIDATE:
                    fault = f"is drawn below node {parent}, but is no candidate there: draws are made by add()"
                else:
                    fault = _fault_of(draw, self.tokens[draw.child], vocab_size)
                if fault:
                    raise _refusal(author, f"node {draw.child} {fault}")


def _refusal(author: str, fault: str) -> PluginError:
    return PluginError(f"proposer {author} returned an illegal tree: {fault}")


def _fault_of(draw: Draw, token: int, vocab_size: int) -> str:
    """Return what is wrong with the distribution of a draw, or "" where nothing is."""
    q = draw.q
    if q is None:
        return ""
    if q.shape != (vocab_size,):
        return f"has a distribution of shape {tuple(q.shape)}, but the target's vocabulary is {vocab_size}"
    if q.dtype not in (torch.float32, torch.float64):
        return f"has a distribution in {q.dtype}: a distribution is float32 or float64, as it was drawn from"
    total, least = float(q.sum()), float(q.min())
    fault = ""
    if not (least >= 0.0 and total < float("inf")):
        fault = f"has a distribution with NaN, infinite or negative entries (least {least}, total {total})"
    elif abs(total - 1.0) > _LAW_TOLERANCE:
        fault = f"has a distribution that sums to {total:.6g}, not to 1"
    elif q[token] == 0.0:
        fault = f"is token {token}, to which its own distribution gives no probability"
    return fault


def merge(trees: Iterable[DraftTree]) -> DraftTree:
    """One trie from several trees below the same root; draws keep the order of the trees.

    Nodes that the trees share become one, and a node sampled in one tree may get children from another: where anything
    was sampled, the result no longer has true laws.
    """
    first, *others = trees
    merged = DraftTree(first.tokens[ROOT])
    merged.has_true_laws = all(
        tree.has_true_laws and not (others and tree.has_sampled_draws) for tree in (first, *others)
    )
    for tree in (first, *others):
        assert tree.tokens[ROOT] == merged.tokens[ROOT], "trees to merge share their root"
        merged.graft(tree, range(1, len(tree)), {ROOT: ROOT})
    return merged
