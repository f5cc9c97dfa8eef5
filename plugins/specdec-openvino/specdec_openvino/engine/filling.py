"""Pads passes to a few sizes, because a compiled graph plans each size separately.

A pass of another size than the previous one takes 2 to 5 ms more for SmolLM2-135M, since the shapes of all operations
are computed again. Graphs with static shapes are planned once.
"""

from collections.abc import Sequence

_PATIENCE = 4  # consecutive passes of a single token before padding stops


class Filling:
    """Chooses the numbers of tokens in passes.

    Args:
        least: the minimum number of tokens of a row.
        sizes: of passes, ascending; larger passes aren't padded.
    """

    def __init__(self, least: int, sizes: Sequence[int]) -> None:
        self.least, self.sizes = least, tuple(size for size in sizes if size >= least)
        self._num_single = 0

    def smallest(self, num_sizes: int) -> tuple[int, ...]:
        """Return the smallest sizes of passes, ascending; without sizes, that of a plain step."""
        return (self.sizes or (self.least,))[:num_sizes]

    def tokens(
        self, num_nodes: Sequence[int], reads_prompt: bool = False, pads_single: bool | None = None
    ) -> list[int]:
        """Return the number of tokens of each row in the next pass, by its nodes; the last row gets the padding.

        Args:
            reads_prompt: True if the pass reads a prompt, which says nothing about drafts: texts without drafts aren't
                padded from the second on.
            pads_single: whether a token alone is padded like two. If None, it is until several were alone in a row,
                because drafts are likely to come back.
        """
        tokens = [max(self.least, count) for count in num_nodes]
        total = sum(tokens)
        if not reads_prompt:
            self._num_single = self._num_single + 1 if total == 1 else 0
        if pads_single is None:
            pads_single = self._num_single <= _PATIENCE
        wanted = 2 if pads_single and total == 1 and self.sizes else total
        tokens[-1] += next((size for size in self.sizes if size >= wanted), total) - total
        return tokens
