"""The n-gram pool of lookahead decoding: for each token, the latest n-grams that begin with it."""

from collections.abc import Iterable


class NgramPool:
    """Holds at most ``capacity`` continuations per key and evicts the least recently added (-1: no limit)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, key: int, continuation: tuple[int, ...]) -> None:
        """Add a continuation as the most recent of its key."""
        if self._capacity == 0:
            return
        known = self._continuations.setdefault(key, {})
        known.pop(continuation, None)
        known[continuation] = None
        if len(known) > self._capacity > 0:
            del known[next(iter(known))]

    def add_text(self, tokens: list[int], length: int) -> None:
        """Add every n-gram of ``length`` tokens of a text; its first token is the key."""
        for start in range(len(tokens) - length + 1):
            self.add(tokens[start], tuple(tokens[start + 1 : start + length]))

    def lookup(self, key: int) -> Iterable[tuple[int, ...]]:
        """Return the continuations of a key, the most recent first."""
        return reversed(self._continuations.get(key, {}))
