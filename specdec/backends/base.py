"""The backend's contract.

A backend owns the model and its cache. Rows are the sequences of the batch, numbered from 0 without gaps.

Laws:
- A tree forward equals forwarding each root-to-node path alone.
- Keep-then-forward equals a fresh forward over the committed tokens; so does rollback-then-forward.
- What a row gives doesn't depend on the other rows, but for the rounding of another shape; under a compiler that is
  ``bit_exact`` not even for that, unless the backend says why.
- A model that can't satisfy them is refused with the reason, or driven with chains where that is right.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from specdec.costs import Costs
from specdec.layout import Compiler, Layout, Shapes
from specdec.tree import DraftTree


class Output:
    """The logits of one forward pass: (rows, columns, vocab), the columns as the layout wanted them."""

    def __init__(self, logits: torch.Tensor, columns: Sequence[int]) -> None:
        self.logits = logits
        self.column_of = {node: column for column, node in enumerate(columns)}
        greatest, ids = logits.max(dim=-1)
        # The one copy to the host that a greedy step needs: ids, below zero where the greatest logit is no number.
        self._ids: list[list[int]] = torch.where(greatest.isfinite(), ids, ~ids).tolist()

    def greatest(self, row: int, node: int) -> int:
        """The id of the greatest logit, the lowest of equals; its complement, below zero, where that is no number."""
        return self._ids[row][self.column_of[node]]

    def row(self, row: int) -> "OutputRow":
        """One sequence's part."""
        return OutputRow(self, row)


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One sequence's part of an output, addressed by node."""

    output: Output
    row: int

    def argmax(self, node: int) -> int:
        """The id of the greatest logit at a node, the lowest of equals."""
        found = self.output.greatest(self.row, node)
        return found if found >= 0 else ~found

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, shape ``(vocab,)``."""
        return self.output.logits[self.row, self.output.column_of[node]]

    def is_finite(self, node: int) -> bool:
        """Return True if the node's greatest logit is finite."""
        return self.output.greatest(self.row, node) >= 0


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first kind of pass with other bits than plain steps ("" for none), and the greatest difference of a logit."""

    where: str
    noise: float


class Backend(ABC):
    """A model with a cache.

    Attributes:
        inexact: why its logits' bits depend on what else is in a pass, or "" where nothing like that is known.
        deviation: how far passes deviate from plain steps, where loading has tried it.
        costs: what its passes cost, where that needs no measuring.
        is_settled: False after a pass such that others like it will be faster later, once the backend knows them.
        runs_layers: True where it calls the model's own layers, which may have packed weights then.
    """

    runs_layers: ClassVar[bool] = False

    shapes: Shapes
    inexact: str = ""
    deviation: Deviation | None = None
    costs: Costs | None = None
    is_settled: bool = True

    @classmethod
    @abstractmethod
    def accepts(cls, model: object) -> bool:
        """Return True if this backend is for such an object; the check is cheap, and never raises an error."""

    @classmethod
    @abstractmethod
    def load(cls, model: object, compiler: Compiler) -> "Backend":
        """A backend driving the model with layouts of the given compiler.

        Raises:
            ModelError: when the model can't be driven, with the reason.
        """

    @abstractmethod
    def prefill(self, tokens: Sequence[int], tree: DraftTree, capacity: int) -> Output:
        """Open the next row with a prompt, and forward with it a tree whose root is the prompt's last token.

        What comes before the root is committed; the tree's nodes wait for ``keep``, as after ``forward``. ``capacity``
        is the number of committed tokens that the row may grow to. The row is open even if this fails.
        """

    @abstractmethod
    def forward(self, layout: Layout) -> Output:
        """One pass over every row's nodes; their keys and values wait behind the row's committed slots for ``keep``."""

    @abstractmethod
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit each row's path of the last forward, root first, in the row's next slots; drop its other nodes.

        An empty path commits nothing.
        """

    @abstractmethod
    def rollback(self, row: int, length: int) -> None:
        """Take a row's committed tokens back to the first ``length``, which may be none."""

    @abstractmethod
    def release(self, row: int) -> None:
        """Close a row; the last row takes its number."""

    def clear(self, row: int) -> None:  # noqa: B027 - optional
        """Overwrite what a row's uncommitted nodes left behind, where a mask can't hide it: NaN reaches any sum."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows that are open."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes held for the keys and values of one row."""
