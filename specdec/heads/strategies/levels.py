"""Predictions that every path of a depth shares, and the most probable paths through them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from specdec.heads.strategies.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Levels:
    """A request's predictions: of each depth, the tokens and their log-probabilities, the most probable first."""

    tokens: Sequence[Sequence[int]]
    log_probs: Sequence[Sequence[float]]

    @property
    def is_finite(self) -> bool:
        """False if a log-probability isn't finite."""
        return all(math.isfinite(each) for level in self.log_probs for each in level)

    def candidates(
        self, num_nodes: int, depth: int, least: float = -math.inf, stops: frozenset[int] = frozenset()
    ) -> Candidates:
        """Return the most probable paths, by the product of their tokens' probabilities, in this order.

        Not finite if a log-probability isn't.

        Args:
            num_nodes: candidates at most.
            depth: of the longest path.
            least: the least log-probability of a path.
            stops: tokens that nothing follows.

        >>> levels = Levels([[5, 6], [7, 8]], [[math.log(0.6), math.log(0.3)], [math.log(0.7), math.log(0.2)]])
        >>> found = levels.candidates(num_nodes=4, depth=2)
        >>> found.tokens, found.parents, [round(math.exp(each), 2) for each in found.log_probs]
        ([5, 7, 6, 7], [-1, 0, -1, 2], [0.6, 0.42, 0.3, 0.21])
        """
        if not self.is_finite:
            return Candidates([0], [-1], [math.nan])
        found, heap, order = Candidates([], [], [], depth, least), list[tuple[float, int, int, int, int]](), 0

        def push(above: float, parent: int, level: int, rank: int) -> None:
            nonlocal order
            if level < min(depth, len(self.tokens)) and rank < len(self.tokens[level]):
                heappush(heap, (-(above + self.log_probs[level][rank]), order, parent, level, rank))
                order += 1

        push(0.0, -1, 0, 0)
        while heap and len(found.tokens) < num_nodes:
            negative, _, parent, level, rank = heappop(heap)
            if -negative < least:
                break
            token, node = self.tokens[level][rank], len(found.tokens)
            found.tokens.append(token)
            found.parents.append(parent)
            found.log_probs.append(-negative)
            push(-negative - self.log_probs[level][rank], parent, level, rank + 1)
            if token not in stops:
                push(-negative, node, level + 1, 0)
        return found
