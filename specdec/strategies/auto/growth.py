"""The growth of a draft tree: the most probable candidates of all sources first.

A candidate's probability is its parent's times its acceptance rate, so it never rises along a path. Taking the most
probable candidate again and again gives, for every number of nodes, the tree that is expected to accept most (Sequoia,
Chen et al. 2024, arXiv 2402.12374, Proposition 3.4, without its fixed fan-out; the procedure of EAGLE-2, Li et al.
2024, arXiv 2406.16858, section 4).
"""

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import maxsize
from typing import Any

from specdec.constraints.path_state import PathState
from specdec.errors import PluginError
from specdec.strategies.auto.acceptance_rates import AcceptanceRate, Agreements
from specdec.strategies.request import Request
from specdec.tree import ROOT, Budget, DraftTree

_MOST_AHEAD = 8  # nodes that are found together, before a sizer has taken them: a row's data stays in the cache


class CandidateSource(ABC):
    """The part of a ``Source`` that a growth needs."""

    @abstractmethod
    def root(self) -> Any:
        """Return the state after the committed tokens."""

    @abstractmethod
    def follow(self, state: Any, token: int) -> Any:
        """Return the state one token further."""

    @abstractmethod
    def candidates(self, state: Any) -> Iterable[tuple[int, AcceptanceRate]]:
        """Return the tokens that may come next, each once, with the acceptance rate of its bucket."""


class Growth:
    """A tree that grows by its most probable candidate, within a budget.

    ``len`` is the number of nodes that were taken, the root included. The next ones may be known already.

    Attributes:
        tokens, parents, depths: of each node in the order in which nodes are taken, the root first.
        probabilities: that the node and all its ancestors are accepted.
        candidates: at each node, the acceptance rate of each candidate token.
    """

    def __init__(
        self,
        sources: Mapping[int, CandidateSource],
        request: Request,
        budget: Budget,
        agreements: Agreements | None = None,
        min_probability: float = 0.0,
        is_chain: bool = False,
        on_failure: Callable[[int, Exception], None] | None = None,
    ) -> None:
        """Begin with the root.

        Args:
            sources: by a number that is the caller's own.
            agreements: acceptance rates where several sources have candidates; new ones if not given.
            min_probability: less probable candidates are never taken.
            is_chain: no node gets a second child.
            on_failure: called with the number of a source that fails, which is then left out; by default the error is
                raised.
        """
        self.tokens, self.parents, self.depths, self.probabilities = [request.root], [-1], [0], [1.0]
        self.candidates: list[Mapping[int, AcceptanceRate]] = []
        self._agreements = Agreements() if agreements is None else agreements
        self._num_taken, self._max_nodes = 1, budget.num_nodes
        self._depth = min(budget.depth, budget.num_tokens - 1)  # a deeper candidate is wasted
        self._vocab_size = request.vocab_size
        self._stops, self._least, self._is_chain = request.eos_token_ids, min_probability, is_chain
        self._states: list[Mapping[int, Any]] = []  # of sources with candidates, at each node
        self._constraint = request.constraint()
        self._constraint_states: list[PathState | None] = []
        self._rates: list[AcceptanceRate] = []  # of each node but the root
        # Minus probability, order, parent, token and rate of each candidate that may yet be taken, most probable first.
        self._frontier: list[tuple[float, int, int, int, AcceptanceRate]] = []
        self._num_found, self._on_failure = 0, on_failure
        self._growing = [*sources.items()]
        self._open(ROOT, is_last=self._depth <= 0)
        self._growing = [(number, source) for number, source in self._growing if number in self._states[ROOT]]

    def __len__(self) -> int:
        return self._num_taken

    @property
    def next_probability(self) -> float:
        """The probability of the next candidate, 0 if there is none or the budget's nodes are taken."""
        if self._num_taken < len(self.tokens):
            return self.probabilities[self._num_taken]
        return self._frontier_probability()

    def _frontier_probability(self) -> float:
        """Return the probability of the best candidate that isn't a node yet, 0 if none may become one."""
        if len(self.tokens) > self._max_nodes:
            return 0.0
        frontier = self._frontier
        if self._constraint is not None:
            while frontier and not self._is_allowed(*frontier[0][2:4]):
                del frontier[0]
        return -frontier[0][0] if frontier else 0.0

    def take(self) -> None:
        """Take the most probable candidate, whose probability was read."""
        if self._num_taken == len(self.tokens):
            most = 1 if self._constraint is not None else _MOST_AHEAD  # masks of constraints take time
            for _ in range(min(most, self._num_taken)):
                if not self._frontier_probability():
                    break
                self._add_node()
        self._num_taken += 1

    def _add_node(self) -> None:
        """Make the best candidate a node, and find the candidates after it."""
        negative, _, parent, token, rate = self._frontier.pop(0)
        if self._is_chain:
            self._frontier.clear()
        depth = self.depths[parent] + 1
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(depth)
        self.probabilities.append(-negative)
        self._rates.append(rate)
        self._open(len(self.tokens) - 1, is_last=depth >= self._depth or token in self._stops)

    def take_all(self) -> None:
        """Take candidates until there are none, or the budget's nodes are taken."""
        while self.next_probability:
            self.take()

    def _open(self, node: int, is_last: bool) -> None:
        """Find the candidates after a node that was just taken; none if it ``is_last`` on its path."""
        if self._constraint is not None:
            self._constraint_states.append(None if is_last else self._constraint_state(node))
        candidates: Mapping[int, AcceptanceRate] = {}
        states, above = dict[int, Any](), self._states[self.parents[node]] if node else {}
        token, vocab_size = self.tokens[node], self._vocab_size
        for number, source in () if is_last else self._growing:
            try:
                if node and number not in above:
                    continue
                state = source.follow(above[number], token) if node else source.root()
                if state is None:
                    continue
                proposed = dict(source.candidates(state))
                if proposed and not (min(proposed) >= 0 and max(proposed) < vocab_size):
                    wrong = next(each for each in proposed if not 0 <= each < vocab_size)
                    raise PluginError(f"proposed token {wrong}, outside the vocabulary of {vocab_size}")
            except Exception as error:  # a third party's code
                self._leave_out(number, error)
                continue
            states[number] = state
            both = candidates and proposed
            candidates = self._agreements.merged(candidates, proposed) if both else candidates or proposed
        self._states.append(states)
        self.candidates.append(candidates)
        self._extend_frontier(node, candidates)

    def _leave_out(self, number: int, error: Exception) -> None:
        """Leave a source that has failed out from now on."""
        if self._on_failure is None:
            raise error
        self._growing = [each for each in self._growing if each[0] != number]
        self._on_failure(number, error)

    def _extend_frontier(self, node: int, candidates: Mapping[int, AcceptanceRate]) -> None:
        """Add a node's candidates, unless others will be taken before them whatever is found later."""
        frontier, path_probability, order = self._frontier, self.probabilities[node], self._num_found
        if self._constraint is not None:  # which may refuse any of them
            room = maxsize
        else:
            room = 1 if self._is_chain else self._max_nodes + 1 - len(self.tokens)
        least = self._least if len(frontier) < room else -frontier[-1][0] if room else 1.0
        for token, rate in candidates.items():
            probability = path_probability * rate.value
            if probability > least:
                order += 1
                insort(frontier, (-probability, order, node, token, rate))
                if len(frontier) >= room:
                    del frontier[room:]
                    least = -frontier[-1][0]
        self._num_found = order

    def _constraint_state(self, node: int) -> PathState | None:
        """The constraint's state after a node that was just taken; None if nothing may follow."""
        if not node:
            return self._constraint
        above = self._constraint_states[self.parents[node]]
        try:
            return None if above is None else above.follow(self.tokens[node])
        except Exception:  # a third party's code
            return None

    def _is_allowed(self, node: int, token: int) -> bool:
        """Return True unless the request's constraint refuses a token after a node.

        The mask is computed here, and so for few nodes without children.
        """
        state = self._constraint_states[node]
        try:
            return state is not None and state.allows(token)
        except Exception:  # a limit, met on a path that may never be written: nothing is drafted there
            return False

    def learn(self, tokens: Sequence[int]) -> None:
        """Update the acceptance rates along the committed tokens, as far as the tree goes."""
        is_free = self._constraint is None
        for node, token in zip((ROOT, *self.path(tokens)), tokens, strict=False):
            for each, rate in self.candidates[node].items():
                if is_free or self._is_allowed(node, each):  # what is refused is no wrong guess
                    rate.update(each == token)

    def path(self, tokens: Sequence[int]) -> list[int]:
        """Return the nodes of the longest path from the root that has the first of these tokens."""
        path, last = list[int](), ROOT
        for node in range(1, self._num_taken):  # each comes after its parent, and siblings differ
            if len(path) == len(tokens):
                break
            if self.parents[node] == last and self.tokens[node] == tokens[len(path)]:
                path.append(last := node)
        return path

    def room(self, num_nodes: int) -> float:
        """Return the probability that the next token is none of the tree of the first ``num_nodes`` nodes."""
        return max(0.0, 1.0 - sum(self.probabilities[node] for node in range(1, num_nodes) if not self.parents[node]))

    def tree(self, num_nodes: int) -> DraftTree:
        """Return the tree of the first ``num_nodes`` nodes, the root included."""
        tree = DraftTree.of_candidates(self.tokens[:num_nodes], self.parents[:num_nodes], self.depths[:num_nodes])
        rates = self._rates[: num_nodes - 1]
        tree.proposed_by = dict(enumerate([rate.sources for rate in rates], 1))
        tree.probs = dict(enumerate([rate.value for rate in rates], 1))
        return tree
