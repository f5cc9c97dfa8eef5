"""The mask compiler's contract.

A compiler turns draft trees and cache lengths into a layout: node ids, positions, visibility and the columns whose
logits are wanted. Row b of a batch keeps its committed tokens in cache slots 0 … lengths[b] - 1, slot = position, and
its nodes come behind them: node i in slot lengths[b] + i.

Laws:
- Visibility equals the ancestor closure: a node sees all committed slots of its row, its ancestors and itself, and
  nothing else; windows are decided on positions, never on slots.
- Every compiler gives the logits of ``dense``.
- Padding nodes see themselves alone, and nobody sees them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from specdec.layout import Layout, Shapes
from specdec.tree import DraftTree


class MaskCompiler(BaseModel, ABC):
    """Configuration of a compiler, and its one method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        """Lay out one forward pass over a tree per row."""
