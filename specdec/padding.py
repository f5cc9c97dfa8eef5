"""The padding of a backend's passes, for the backend that pads and for the costs of steps, which depend on it."""

from bisect import bisect_left
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


NO_PADDING = Padding()
