"""The growth of a draft tree: the likeliest candidates of all sources first.

A candidate's chance is its parent's times the rate of its kind, or of the kinds together under which several sources
name it. Chances never rise along a path, so taking the likeliest candidate again and again gives, for every number of
nodes, the tree of so many that is expected to bring most (Sequoia, Chen et al. 2024, arXiv 2402.12374, Proposition 3.4,
without its fixed fan-out; the procedure of EAGLE-2, Li et al. 2024, arXiv 2406.16858, section 4).
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
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
        named: what the sources said at each node: by token, the rates of the kinds under which they named it.
    """

    def __init__(
        self,
        sources: Sequence["Source"],
        request: Request,
        budget: Budget,
        agreements: Agreements | None = None,
        least_chance: float = 0.0,
        is_chain: bool = False,
        on_failure: Callable[["Source", Exception], None] | None = None,
    ) -> None:
        """Begin with the root.

        Args:
            agreements: the rates of tokens that several sources name; without, the first one's rate counts.
            least_chance: candidates less likely than that are never taken.
            is_chain: no node gets a second child.
            on_failure: told of a source that fails, which isn't asked again; without it the error is raised.
        """
        self.tokens, self.parents, self.depths, self.chances = [request.root], [-1], [0], [1.0]
        self.named: list[Mapping[int, tuple[Rate, ...]]] = []
        self._sources, self._agreements = sources, agreements
        self._depth = min(budget.depth, budget.num_tokens - 1)  # a deeper candidate is wasted
        self._stops, self._least, self._is_chain = request.eos_token_ids, least_chance, is_chain
        self._states: list[list[Any]] = []
        self._heap: list[tuple[float, int, int, int]] = []  # minus chance, order, parent, token
        self._num_pushed = 0
        self._failed: list[Source] = []
        self._on_failure = on_failure
        self._open(ROOT, [self._told(source, source.root) for source in sources])

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
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.chances.append(-chance)
        states = [
            None if state is None else self._told(source, source.follow, state, token)
            for source, state in zip(self._sources, self._states[parent], strict=True)
        ]
        self._open(node, states)

    def _open(self, node: int, states: list[Any]) -> None:
        self._states.append(states)
        if self.depths[node] >= self._depth or (node and self.tokens[node] in self._stops):
            self.named.append({})
            return
        named = dict[int, tuple[Rate, ...]]()
        for source, state in zip(self._sources, states, strict=True):
            if state is not None:
                for token, rate in self._told(source, source.candidates, state) or ():
                    said = named.get(token)
                    named[token] = (rate,) if said is None else (*said, rate)
        self.named.append(named)
        chance, least, agreements, order = self.chances[node], self._least, self._agreements, self._num_pushed
        for token, said in named.items():
            likelihood = chance * (said[0] if agreements is None else agreements[said]).value
            if likelihood > least:
                order += 1
                heapq.heappush(self._heap, (-likelihood, order, node, token))
        self._num_pushed = order

    def _told(self, source: "Source", question: Callable[..., Any], *about: Any) -> Any:
        """The source's answer, None once it has failed."""
        try:
            return question(*about) if source not in self._failed else None
        except Exception as error:  # a third party's code
            if self._on_failure is None:
                raise
            self._failed.append(source)
            self._on_failure(source, error)
            return None

    def learn(self, tokens: Sequence[int]) -> None:
        """Note what was right along the tokens that were committed, as far as the tree goes."""
        children = {place: node for node, place in enumerate(zip(self.parents, self.tokens, strict=True))}
        node = ROOT
        for token in tokens:
            for named, said in self.named[node].items():
                is_right = named == token
                if self._agreements is not None:
                    self._agreements[said].note(is_right)
                for rate in said:
                    rate.note(is_right)
            if (node, token) not in children:
                return
            node = children[node, token]

    def tree(self, num_nodes: int) -> DraftTree:
        """The first so many nodes, the root among them."""
        tree = DraftTree(self.tokens[ROOT])
        for node in range(1, min(num_nodes, len(self))):
            parent, token = self.parents[node], self.tokens[node]
            tree.add(parent, token)
            tree.named_by[node] = tuple([rate.source for rate in self.named[parent][token]])
            tree.chances[node] = self.chances[node] / self.chances[parent]
        return tree
