"""The padding of a backend's passes, for the backend that pads and for the costs of steps, which depend on it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Padding:
    """The numbers of tokens to which a backend pads its passes, all rows together.

    Attributes:
        sizes: ascending; larger passes aren't padded. Empty: none are.
        least_width: number of tokens to which each row is padded first.
    """

    sizes: tuple[int, ...] = ()
    least_width: int = 1

    def size(self, num_tokens: float) -> float:
        """Return the size of a pass over ``num_tokens`` tokens."""
        index = bisect_left(self.sizes, num_tokens)
        return self.sizes[index] if index < len(self.sizes) else num_tokens

    def size_of_rows(self, num_rows: int, width: float) -> float:
        """Return the size of a pass over ``num_rows`` rows of ``width`` tokens, in the mean."""
        return self.size(round(num_rows * max(width, self.least_width)))

    def may_pad_root(self, num_rows: int) -> bool:
        """Return True if the pass of a root alone has one size or another, as ``DraftTree.pads_root`` says."""
        return num_rows == self.least_width == 1 and bool(self.sizes) and self.size(1) != self.size(2)

    def tokens(self, num_nodes: Sequence[int], pads_root: bool = False) -> list[int]:
        """Return the number of tokens of each row in a pass, by its nodes; the last row gets the rest of the size.

        Args:
            pads_root: whether a root alone is padded to the size of two tokens.
        """
        tokens = [max(self.least_width, count) for count in num_nodes]
        total = sum(tokens)
        size = self.size(2 if pads_root and total == 1 and self.may_pad_root(1) else total)
        tokens[-1] += int(size) - total
        return tokens


NO_PADDING = Padding()
