"""Draft trees: the representation of every draft.

Node 0 is the root, the last committed token. A node's position is the root's plus the node's depth; it attends to the
prefix, its ancestors and itself. A chain is a tree with one branch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache, partial
from operator import index, lt
from typing import NamedTuple, Self

import torch

from specdec.errors import PluginError, plural

ROOT = 0
_SUM_TOLERANCE = 1e-5  # float32 rounding over a large vocabulary; a forgotten renormalisation exceeds it by far


class Role(IntFlag):
    """The purpose of a node; a merged node has the roles of all its origins."""

    CANDIDATE = 1  # may be accepted
    PROBE = 2  # its prediction is fed back to the proposer
    SUPPORT = 4  # other nodes attend to it


class Draw(NamedTuple):
    """The origin of a candidate.

    Attributes:
        q: the distribution that the candidate was drawn from, ``(vocab,)``, conditional on its path and its parent's
            earlier draws; None for a chosen candidate (a one-hot q).
    """

    child: int
    q: torch.Tensor | None = None


@lru_cache(1024)  # most draws are these, and a draw is immutable: trees share them instead of making one per node
def _draw_of(node: int) -> Draw:
    """Return the draw of a chosen candidate."""
    return Draw(node)


@dataclass(frozen=True, slots=True)
class Budget:
    """The maximum size of a draft tree in one step.

    Attributes:
        num_nodes: a limit, without the root.
        depth: a limit: deeper nodes would exceed the model's positions.
        num_tokens: advice: the number of tokens that may still be emitted, so a deeper candidate is wasted.
    """

    num_nodes: int
    depth: int
    num_tokens: int


class DraftTree:
    """An append-only trie: one node per distinct path below the root.

    Adding a token twice below one parent returns the same node, with united roles and both draws.

    Attributes:
        draws: by parent, in the order in which a verifier tries them.
        wanted: the nodes whose logits are read, ascending; None for the root, candidates and probes. Proposers leave it
            None: the decoding loop sets it by their declared signals.
        proposed_by: by node of a merge, the strategies that proposed its token.
        probs: by node of a merge, the probability that the node is right if its parent is.
        sources: the trees whose nodes ``graft`` copied, each with its nodes' places here.
        blocks: stretches of a prompt's nodes that all see one another, and all nodes before them.
        block_kinds: the kinds of attention layer in which they do; None for all.
        has_true_q: every draw's q is the distribution that the draw came from. A proposer that drops or re-ranks
            *sampled* nodes by the outcome of the draw must set this to False: ``match`` then verifies the tree.
    """

    def __init__(self, root: int) -> None:
        self.tokens: list[int] = [root]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        self.roles: list[Role] = [Role.CANDIDATE]
        self.draws: dict[int, list[Draw]] = {}
        self.has_true_q = True
        self.wanted: Sequence[int] | None = None
        self.proposed_by: dict[int, tuple[str, ...]] = {}
        self.probs: dict[int, float] = {}
        self.sources: list[tuple[DraftTree, Mapping[int, int]]] = []
        self.blocks: tuple[range, ...] = ()
        self.block_kinds: Collection[str] | None = None
        self._index: dict[tuple[int, int], int] = {}

    @classmethod
    def of_candidates(cls, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Self:
        """A tree of chosen tokens, root first, each after its parent; siblings differ."""
        tree = cls(tokens[ROOT])
        num_nodes = len(tokens)
        if num_nodes == 1:
            return tree
        tree.tokens, tree.parents, tree.depths = [*map(index, tokens)], list(parents), list(depths)
        tree.roles = [Role.CANDIDATE] * num_nodes
        tree._index = dict(zip(zip(parents[1:], tree.tokens[1:], strict=True), range(1, num_nodes), strict=True))
        draws = tree.draws
        for node in range(1, num_nodes):
            if (parent := parents[node]) in draws:
                draws[parent].append(_draw_of(node))
            else:
                draws[parent] = [_draw_of(node)]
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def blocks_in(self, kind: str) -> tuple[range, ...]:
        """Return the blocks of a kind of attention layer."""
        return self.blocks if self.block_kinds is None or kind in self.block_kinds else ()

    def __repr__(self) -> str:
        return f"DraftTree(tokens={self.tokens}, parents={self.parents})"

    def add(self, parent: int, token: int, role: Role = Role.CANDIDATE, q: torch.Tensor | None = None) -> int:
        """The node for ``token`` below an existing ``parent``, new or merged; the draw of a candidate is recorded."""
        node = self._place(parent, token, role)
        if role is Role.CANDIDATE or role & Role.CANDIDATE:  # enum's own operators take a microsecond each
            self.draws.setdefault(parent, []).append(Draw(node, q))
        return node

    def _place(self, parent: int, token: int, role: Role) -> int:
        token = index(token)  # raises TypeError for a float
        node = self._index.get((parent, token))
        if node is not None:
            self.roles[node] |= role
            return node
        if not 0 <= parent < len(self):
            raise IndexError(f"no node {parent} to add below: this tree has nodes 0 to {len(self) - 1}")
        node = self._index[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.roles.append(role)
        return node

    def add_chain(self, parent: int, tokens: Iterable[int], role: Role = Role.CANDIDATE) -> list[int]:
        """Add a chain of tokens below ``parent``; return its nodes, the shallowest first."""
        if len(self) == 1 and parent == ROOT and role is Role.CANDIDATE:
            return self._add_first_chain([*map(index, tokens)])
        nodes = []
        for token in tokens:
            parent = self.add(parent, token, role)
            nodes.append(parent)
        return nodes

    def _add_first_chain(self, tokens: Sequence[int]) -> list[int]:
        """Add a chain of chosen candidates to a root alone: most drafts are one, so this is a few list operations."""
        nodes, above = [*range(1, len(tokens) + 1)], range(len(tokens))
        self.tokens += tokens
        self.parents += above
        self.depths += nodes
        self.roles += [Role.CANDIDATE] * len(tokens)
        self._index = dict(zip(zip(above, tokens, strict=True), nodes, strict=True))
        self.draws = {parent: [_draw_of(parent + 1)] for parent in above}
        return nodes

    @property
    def has_sampled_draws(self) -> bool:
        """True if any candidate was drawn from a distribution."""
        return any(draw.q is not None for draws in self.draws.values() for draw in draws)

    def child(self, node: int, token: int) -> int | None:
        """The candidate with ``token`` below ``node``, or None."""
        found = self._index.get((node, token))
        return found if found is not None and self.roles[found] & Role.CANDIDATE else None

    def path(self, node: int) -> list[int]:
        """The tokens of the path to ``node``, excluding the root."""
        return [self.tokens[ancestor] for ancestor in self.lineage(node)[1:]]

    def lineage(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to ``node``, inclusive."""
        nodes = [node]
        while nodes[-1] != ROOT:
            nodes.append(self.parents[nodes[-1]])
        return tuple(reversed(nodes))

    def nodes_with(self, role: Role) -> list[int]:
        """The nodes with any of some roles, excluding the root."""
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
        """Copy nodes of another tree with their draws, and record the tree among ``sources``.

        Args:
            nodes: ascending, each after its parent.
            onto: the places here of nodes that aren't copied, such as the root.

        Returns:
            The place here of each node; a copy merges with an equal node.
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
        """The place here of each node of a tree that this one was made from, or None."""
        if source is self:
            return {node: node for node in range(len(self))}
        for tree, place in self.sources:
            inner = tree.place_of(source)
            if inner is not None:
                return {node: place[between] for node, between in inner.items() if between in place}
        return None

    def subtree(self, nodes: Iterable[int]) -> "DraftTree":
        """The subtree of the root and some nodes, ascending, each after its parent.

        Without some of its sampled nodes, the subtree's draws have no true q.
        """
        part = DraftTree(self.tokens[ROOT])
        place = part.graft(self, nodes, {ROOT: ROOT})
        part.has_true_q = self.has_true_q and (len(place) == len(self) or not self.has_sampled_draws)
        return part

    def below(self, prefix: Sequence[int], wants_prefix: bool = False) -> "DraftTree":
        """The tree with a chain of committed tokens in front of its root, whose logits are read if ``wants_prefix``."""
        if not prefix:
            return self
        grown = DraftTree(prefix[0])
        last = grown.add_chain(ROOT, prefix[1:], Role.SUPPORT)[-1:] or [ROOT]
        root = grown._place(last[0], self.tokens[ROOT], self.roles[ROOT])
        place = grown.graft(self, range(1, len(self)), {ROOT: root})
        wanted = [place[node] for node in self.nodes_wanted()]
        grown.wanted = [*range(len(prefix)), *wanted] if wants_prefix else wanted
        return grown

    def longest_chain(self) -> "DraftTree":
        """The path to the deepest candidate, the first of equals: for models without tree drafts."""
        if self.is_chain:
            return self
        candidates = self.nodes_with(Role.CANDIDATE)
        deepest = max([self.depths[node] for node in candidates], default=0)
        node = next((node for node in candidates if self.depths[node] == deepest), ROOT)
        return self.subtree(self.lineage(node))

    def check(self, root: int, vocab_size: int, budget: Budget, author: str) -> None:
        """Raise PluginError, naming ``author`` and the node, if the tree breaks a proposer's law."""
        refuse = partial(_refusal, author)
        if self.tokens[ROOT] != root:
            raise refuse(f"its root is token {self.tokens[ROOT]}, but the last committed token is {root}")
        if not len(self.tokens) == len(self.parents) == len(self.depths) == len(self.roles):
            raise refuse("its lists of tokens, parents, depths and roles differ in length, so add() didn't make them")
        if len(self) - 1 > budget.num_nodes:
            raise refuse(f"{plural(len(self) - 1, 'node')} below the root, but the budget is {budget.num_nodes}")
        if len(self) > 1 and not self._is_legal(vocab_size, budget.depth):
            raise refuse(self._fault(vocab_size, budget.depth))

    def _is_legal(self, vocab_size: int, max_depth: int) -> bool:
        """Return True if each node has a legal token, depth and parent; quickly, since all trees are checked."""
        parents, depths, num_nodes = self.parents, self.depths, len(self.tokens)
        above = parents[1:]
        return (
            min(self.tokens) >= 0
            and max(self.tokens) < vocab_size
            and max(depths) <= max_depth
            and min(above) >= 0
            and all(map(lt, above, range(1, num_nodes)))
            and depths[1:] == [depths[parent] + 1 for parent in above]
            and [*map(self._index.get, zip(above, self.tokens[1:], strict=True))] == [*range(1, num_nodes)]
        )

    def _fault(self, vocab_size: int, max_depth: int) -> str:
        """Return what is wrong with the first illegal node."""
        depths, known = self.depths, self._index
        for node in range(1, len(depths)):
            token, parent, depth = self.tokens[node], self.parents[node], depths[node]
            if not 0 <= token < vocab_size:
                return f"node {node} has token {token}, outside the vocabulary of {vocab_size}"
            is_placed = 0 <= parent < node and depth == depths[parent] + 1
            if not is_placed or known.get((parent, token)) != node:
                return f"node {node} below {parent} was not made by add(), which keeps parents before children"
            if depth > max_depth:
                return f"node {node} is {depth} deep, but the budget allows {max_depth}"
        return ""

    def check_draws(self, vocab_size: int, author: str) -> None:
        """Raise PluginError, naming ``author`` and the node, if a draw can't have come from its q."""
        for parent, draws in self.draws.items():
            for draw in draws:
                is_placed = 0 < draw.child < len(self) and self.parents[draw.child] == parent
                if not is_placed or not self.roles[draw.child] & Role.CANDIDATE:
                    fault = f"is drawn below node {parent}, but isn't a candidate there: use add() to make draws"
                else:
                    fault = _fault_of(draw, self.tokens[draw.child], vocab_size)
                if fault:
                    raise _refusal(author, f"node {draw.child} {fault}")


def _refusal(author: str, fault: str) -> PluginError:
    return PluginError(f"proposer {author} returned an illegal tree: {fault}")


def _fault_of(draw: Draw, token: int, vocab_size: int) -> str:
    """Return what is wrong with a draw's distribution, or ""."""
    q = draw.q
    if q is None:
        return ""
    if q.shape != (vocab_size,):
        return f"has a distribution of shape {tuple(q.shape)}, but the target's vocabulary is {vocab_size}"
    if q.dtype not in (torch.float32, torch.float64):
        return f"has a distribution in {q.dtype}: use float32 or float64, whichever it was drawn from"
    total, least = float(q.sum()), float(q.min())
    if not (least >= 0.0 and total < float("inf")):
        return f"has a distribution with NaN, infinite or negative entries (least {least}, total {total})"
    if abs(total - 1.0) > _SUM_TOLERANCE:
        return f"has a distribution that sums to {total:.6g}, not to 1"
    return "" if q[token] else f"is token {token}, which has probability 0 in its own distribution"


def merge(trees: Iterable[DraftTree]) -> DraftTree:
    """Merge trees with the same root into one trie; draws are in the order of the trees.

    A node sampled in one tree may get children from another, so after sampling the merged draws have no true q.
    """
    parts = list(trees)
    merged = DraftTree(parts[0].tokens[ROOT])
    for tree in parts:
        merged.has_true_q &= tree.has_true_q and (len(parts) == 1 or not tree.has_sampled_draws)
        assert tree.tokens[ROOT] == merged.tokens[ROOT], "trees to merge share their root"
        merged.graft(tree, range(1, len(tree)), {ROOT: ROOT})
    return merged
