"""The growth of a draft tree: the most probable candidates of all sources first.

A candidate's probability is its parent's times the acceptance rate of its kind, so it never rises along a path. Taking
the most probable candidate again and again gives, for every number of nodes, the tree that is expected to accept most
(Sequoia, Chen et al. 2024, arXiv 2402.12374, Proposition 3.4, without its fixed fan-out; the procedure of EAGLE-2, Li
et al. 2024, arXiv 2406.16858, section 4).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from specdec.errors import PluginError
from specdec.strategies.base import Request
from specdec.strategies.merging.acceptance_rates import Agreements, Rate
from specdec.tree import ROOT, Budget, DraftTree


class CandidateSource(Protocol):
    """The part of a ``Source`` that a growth needs."""

    def root(self) -> Any:
        """Return the state after the committed tokens."""

    def follow(self, state: Any, token: int) -> Any:
        """Return the state one token further."""

    def candidates(self, state: Any) -> Sequence[tuple[int, Rate]]:
        """Return the tokens that may come next, each with the rate of its kind."""


class Growth:
    """A tree that grows by its most probable candidate.

    Attributes:
        tokens, parents, depths, chances: of each node in the order in which it was taken, the root first.
        named: the candidates at each node: by token, the rate of the kind that it is of.
    """

    def __init__(
        self,
        sources: Sequence[CandidateSource],
        request: Request,
        budget: Budget,
        agreements: Agreements | None = None,
        least_chance: float = 0.0,
        is_chain: bool = False,
        on_failure: Callable[[CandidateSource, Exception], None] | None = None,
    ) -> None:
        """Begin with the root.

        Args:
            agreements: the kinds of tokens that several sources name; new ones if not given.
            least_chance: candidates less likely than that are never taken.
            is_chain: no node gets a second child.
            on_failure: called with a source that fails, which is then left out; by default the error is raised.
        """
        self.tokens, self.parents, self.depths, self.chances = [request.root], [-1], [0], [1.0]
        self.named: list[Mapping[int, Rate]] = []
        self._sources: list[CandidateSource | None] = list(sources)  # None in the place of one that has failed
        self._agreements = Agreements() if agreements is None else agreements
        self._depth = min(budget.depth, budget.num_tokens - 1)  # a deeper candidate is wasted
        self._vocab_size = request.vocab_size
        self._stops, self._least, self._is_chain = request.eos_token_ids, least_chance, is_chain
        self._states: list[list[Any]] = []
        self._heap: list[tuple[float, int, int, int]] = []  # minus chance, order, parent, token
        self._num_pushed = 0
        self._on_failure = on_failure
        self._open(ROOT)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def next_chance(self) -> float:
        """The probability of the next candidate, 0 if there is none."""
        return -self._heap[0][0] if self._heap else 0.0

    def take(self) -> None:
        """Take the most probable candidate, and open what may follow it."""
        chance, _, parent, token = heappop(self._heap)
        if self._is_chain:
            self._heap.clear()
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.chances.append(-chance)
        self._open(node)

    def _open(self, node: int) -> None:
        """Gather what may follow a node that was just taken."""
        states, named = list[Any](), dict[int, Rate]()
        self._states.append(states)
        self.named.append(named)
        token = self.tokens[node]
        if self.depths[node] >= self._depth or (node and token in self._stops):
            return
        above = self._states[self.parents[node]] if node else None
        for index, source in enumerate(self._sources):
            state = None
            if source is not None:
                try:
                    if above is None:
                        state = source.root()
                    elif above[index] is not None:
                        state = source.follow(above[index], token)
                    if state is not None:
                        self._gather(source.candidates(state), named)
                except Exception as error:  # a third party's code
                    self._drop(index, error)
            states.append(state)
        self._push(node, named)

    def _gather(self, candidates: Iterable[tuple[int, Rate]], named: dict[int, Rate]) -> None:
        """Add one source's candidates to those of the others."""
        agreements, size = self._agreements, self._vocab_size
        for each, rate in candidates:
            if not 0 <= each < size:
                raise PluginError(f"named token {each}, outside the vocabulary of {size}")
            known = named.get(each)
            named[each] = rate if known is None else agreements[known, rate]

    def _push(self, node: int, named: Mapping[int, Rate]) -> None:
        """Queue the candidates after a node, unless they are too improbable."""
        chance, least, heap, order = self.chances[node], self._least, self._heap, self._num_pushed
        for each, rate in named.items():
            likelihood = chance * rate.value
            if likelihood > least:
                order += 1
                heappush(heap, (-likelihood, order, node, each))
        self._num_pushed = order

    def _drop(self, index: int, error: Exception) -> None:
        source = self._sources[index]
        if self._on_failure is None or source is None:
            raise error
        self._sources[index] = None
        self._on_failure(source, error)

    def learn(self, tokens: Sequence[int]) -> None:
        """Note what was right along the tokens that were committed, as far as the tree goes."""
        children = {place: node for node, place in enumerate(zip(self.parents, self.tokens, strict=True))}
        node: int | None = ROOT
        for token in tokens:
            if node is None:
                return
            for each, rate in self.named[node].items():
                rate.note(each == token)
            node = children.get((node, token))

    def tree(self, num_nodes: int) -> DraftTree:
        """Return the tree of the first ``num_nodes`` nodes, the root included."""
        tree = DraftTree.of_candidates(self.tokens[:num_nodes], self.parents[:num_nodes], self.depths[:num_nodes])
        for node in range(1, len(tree)):
            rate = self.named[tree.parents[node]][tree.tokens[node]]
            tree.proposed_by[node], tree.probs[node] = rate.sources, rate.value
        return tree
