"""Growths of given probabilities, for tests of cost models and sizers."""

from collections.abc import Sequence

from specdec.strategies import Growth


class FixedGrowth(Growth):
    """Candidates of given probabilities, one after the other, without sources; ``num_nodes`` of them at most."""

    def __init__(self, probabilities: Sequence[float], num_nodes: int = 100) -> None:
        self.tokens, self.parents, self.depths, self.probabilities = [0], [-1], [0], [1.0]
        self.candidates = [{}]
        self._left, self._max_nodes = sorted(probabilities), num_nodes

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def next_probability(self) -> float:
        return self._left[-1] if self._left and len(self) <= self._max_nodes else 0.0

    def take(self) -> None:
        self.probabilities.append(self._left.pop())
        self.tokens.append(len(self.tokens))
