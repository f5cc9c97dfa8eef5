"""Growth whose chances are told."""

from collections.abc import Sequence

from specdec.strategies.merging.growth import Growth


class ToldGrowth(Growth):
    """Candidates of given chances, one after the other, without sources."""

    def __init__(self, chances: Sequence[float]) -> None:
        self.tokens, self.parents, self.depths, self.chances = [0], [-1], [0], [1.0]
        self.named = [{}]
        self._left = sorted(chances)

    @property
    def next_chance(self) -> float:
        return self._left[-1] if self._left else 0.0

    def take(self) -> None:
        self.chances.append(self._left.pop())
        self.tokens.append(len(self.tokens))
