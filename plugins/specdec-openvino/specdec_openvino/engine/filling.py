"""Pads passes to a few sizes, because a compiled graph plans each size separately.

A pass of another size than the previous one takes 2 to 5 ms more for SmolLM2-135M, since the shapes of all operations
are computed again. Graphs with static shapes are planned once.
"""

from collections.abc import Sequence

from specdec.padding import Padding

_PATIENCE = 4  # consecutive passes of a single token before padding stops


class Filling:
    """Chooses the numbers of tokens in passes: those of a padding, and for a single token whether it is padded.

    Args:
        padding: which strategies that weigh costs know as well.
        num_static: the number of smallest sizes whose graphs have static shapes from the first pass on.
        most_tokens: tokens of a pass at most, of chains, where larger passes are rounded differently; None for any.
    """

    def __init__(self, padding: Padding, num_static: int = 0, most_tokens: int | None = None) -> None:
        self.padding, self.most_tokens = padding, most_tokens
        self.static_sizes = self.smallest(num_static)
        # No change of sizes delays it. A graph that is ready later changes no passes, whose rounding depends on sizes.
        self._pads_none = 1 in self.static_sizes
        self._num_single = 0

    def smallest(self, num_sizes: int) -> tuple[int, ...]:
        """Return the smallest sizes of passes, ascending; without sizes, that of a plain step."""
        return (self.padding.sizes or (self.padding.least_width,))[:num_sizes]

    def tokens(self, num_nodes: Sequence[int], reads_prompt: bool = False, pads_root: bool | None = None) -> list[int]:
        """Return the number of tokens of each row in the next pass, by its nodes.

        Args:
            reads_prompt: True if the pass reads a prompt, which says nothing about drafts: texts without drafts aren't
                padded from the second on.
            pads_root: whether a token alone is padded like two. If None, it is until several were alone in a row,
                because drafts are likely to come back, unless its graph has static shapes.
        """
        tokens = self.padding.tokens(num_nodes)
        is_single = sum(tokens) == 1
        if not reads_prompt:
            self._num_single = self._num_single + 1 if is_single else 0
        if pads_root is None:
            pads_root = self._num_single <= _PATIENCE and not self._pads_none
        return self.padding.tokens(num_nodes, pads_root=True) if is_single and pads_root else tokens
