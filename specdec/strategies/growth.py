"""The growth of a draft tree: the likeliest candidates of all sources first.

A candidate's chance is its parent's times the rate of its kind, or of the kinds together under which several sources
name it. Chances never rise along a path, so taking the likeliest candidate again and again gives, for every number of
nodes, the tree of so many that is expected to bring most (Sequoia, Chen et al. 2024, arXiv 2402.12374, Proposition 3.4,
without its fixed fan-out; the procedure of EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4).
"""

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec.strategies.base import Request
from specdec.strategies.rates import Agreements, Rate
from specdec.tree import ROOT, Budget, DraftTree

if TYPE_CHECKING:
    from specdec.strategies.sources.base import Source


class Growth:
    """A tree that grows by its likeliest candidate.

    Attributes:
        tokens, parents, depths, chances: of each node in the order in which it was taken, the root first.
        named: what the sources said at each node: by token, the indices of those that named it, with their rates.
    """

    def __init__(
        self,
        sources: Sequence["Source"],
        request: Request,
        budget: Budget,
        agreements: Agreements | None = None,
        chain: bool = False,
    ) -> None:
        self.tokens, self.parents, self.depths, self.chances = [request.root], [-1], [0], [1.0]
        self.named: list[dict[int, list[tuple[int, Rate]]]] = []
        self._sources, self._agreements = sources, agreements
        self._depth = min(budget.depth, budget.num_tokens - 1)  # a deeper candidate is wasted
        self._stops = request.eos_token_ids
        self._is_chain = chain
        self._states: list[list[Any]] = []
        self._heap: list[tuple[float, int, int, int]] = []  # minus chance, order, parent, token
        self._num_pushed = 0
        self._open(0, [source.root() for source in sources])

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def next_chance(self) -> float:
        """The chance of the likeliest candidate that wasn't taken, 0 where there is none."""
        return -self._heap[0][0] if self._heap else 0.0

    def take(self) -> None:
        """Take the likeliest candidate, and ask the sources what may follow it."""
        chance, _, parent, token = heapq.heappop(self._heap)
        if self._is_chain:
            self._heap.clear()
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.chances.append(-chance)
        states = self._states[parent]
        self._open(
            len(self.tokens) - 1,
            [
                None if state is None else source.follow(state, token)
                for source, state in zip(self._sources, states, strict=True)
            ],
        )

    def _open(self, node: int, states: list[Any]) -> None:
        named = dict[int, list[tuple[int, Rate]]]()
        self.named.append(named)
        self._states.append(states)
        if self.depths[node] >= self._depth or (self.tokens[node] in self._stops and node):
            return
        for index, source in enumerate(self._sources):
            if (state := states[index]) is not None:
                for token, rate in source.candidates(state):
                    named.setdefault(token, []).append((index, rate))
        chance = self.chances[node]
        for token, said in named.items():
            self._num_pushed += 1
            heapq.heappush(self._heap, (-chance * self._rate(said).value, self._num_pushed, node, token))

    def _rate(self, said: Sequence[tuple[int, Rate]]) -> Rate:
        return said[0][1] if self._agreements is None else self._agreements[tuple([rate for _, rate in said])]

    def learn(self, tokens: Sequence[int]) -> None:
        """Note what was right along the tokens that were committed, as far as the tree goes."""
        children = {place: node for node, place in enumerate(zip(self.parents, self.tokens, strict=True))}
        node = ROOT
        for token in tokens:
            for named, said in self.named[node].items():
                if self._agreements is not None:
                    self._rate(said).note(named == token)
                for _, rate in said:
                    rate.note(named == token)
            if (node, token) not in children:
                return
            node = children[node, token]

    def tree(self, num_nodes: int, names: Sequence[str] = ()) -> DraftTree:
        """The first so many nodes, the root among them; ``names`` of the sources are noted with what each named."""
        tree = DraftTree(self.tokens[ROOT])
        for node in range(1, min(num_nodes, len(self))):
            parent, token = self.parents[node], self.tokens[node]
            tree.add(parent, token)
            if names:
                tree.named_by[node] = tuple(names[index] for index, _ in self.named[parent][token])
        return tree
