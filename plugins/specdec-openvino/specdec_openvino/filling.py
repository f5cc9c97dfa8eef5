"""Passes filled up to a few sizes, because another size is another plan to a compiled graph.

A pass of another size than the one before takes 2 to 5 ms more for SmolLM2-135M, since the shapes of all operations are
worked out anew, while the engine's kernels take hardly longer for six tokens than for one.
"""

from collections.abc import Sequence

_PATIENCE = 4  # consecutive passes of a single token before one is fed alone


class Filling:
    """The numbers of tokens that passes are fed.

    Args:
        least: tokens of a row.
        sizes: of passes, ascending; larger ones are fed as they are.
    """

    def __init__(self, least: int, sizes: Sequence[int]) -> None:
        self.least, self.sizes = least, tuple(size for size in sizes if size >= least)
        self._num_single = 0

    def tokens(self, num_nodes: Sequence[int]) -> list[int]:
        """The tokens of each row in the next pass, by its nodes; the last row has what all lack of a size."""
        tokens = [max(self.least, count) for count in num_nodes]
        total = sum(tokens)
        self._num_single = self._num_single + 1 if total == 1 else 0
        wanted = 2 if 0 < self._num_single <= _PATIENCE and self.sizes else total  # drafts are likely to come back
        tokens[-1] += next((size for size in self.sizes if size >= wanted), total) - total
        return tokens
