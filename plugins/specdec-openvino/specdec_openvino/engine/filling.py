"""Pads passes to a few sizes, because a compiled graph plans each size separately.

A pass of another size than the previous one takes 2 to 5 ms more for SmolLM2-135M, since the shapes of all operations
are computed again. Graphs with static shapes are planned once.
"""

from collections.abc import Sequence

from specdec.layout import Padding

_PATIENCE = 4  # consecutive passes of a single token that are padded


class Filling:
    """Chooses the numbers of tokens in passes: those of a padding, and one for each of many single tokens in a row.

    Args:
        padding: which strategies that weigh costs know as well; they count every single token as padded.
        num_static: the number of smallest sizes whose graphs have static shapes from the first pass on.
        most_tokens: tokens of a pass at most, of chains, where larger passes are rounded differently; None for any.

    Attributes:
        size, size_before: tokens of the last pass and of the one before it, all rows together; 0 before there is one.
    """

    def __init__(self, padding: Padding, num_static: int = 0, most_tokens: int | None = None) -> None:
        self.padding, self.most_tokens = padding, most_tokens
        self.static_sizes = self.smallest(num_static)
        self.size = self.size_before = 0
        self._num_single = _PATIENCE  # in a row: plain decoding, which pads none, may come first

    def smallest(self, num_sizes: int) -> tuple[int, ...]:
        """Return the smallest sizes of passes, ascending; without sizes, that of a plain step."""
        return (self.padding.sizes or (self.padding.least_width,))[:num_sizes]

    def tokens(self, num_nodes: Sequence[int], reads_prompt: bool = False) -> list[int]:
        """Return the number of tokens of each row in the next pass, by its nodes; the last row gets the padding.

        Args:
            reads_prompt: True if the pass reads a prompt, which says nothing about drafts: texts without drafts aren't
                padded from the second on.
        """
        tokens = [max(self.padding.least_width, count) for count in num_nodes]
        total = sum(tokens)
        if not reads_prompt:
            self._num_single = self._num_single + 1 if total == 1 else 0
        if total > 1 or self._num_single <= _PATIENCE:
            tokens[-1] += int(self.padding.size(total)) - total
        self.size_before, self.size = self.size, sum(tokens)
        return tokens
