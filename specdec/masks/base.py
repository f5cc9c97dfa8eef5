"""The mask compiler's contract.

A compiler turns draft trees and cache lengths into a layout: node ids, positions, visibility and the columns whose
logits are wanted. Row b of a batch keeps its committed tokens in cache slots 0 … lengths[b] - 1, slot = position, and
its nodes follow: node i in slot lengths[b] + i.

Laws:
- Visibility equals the ancestor closure: a node sees all committed slots of its row, its ancestors and itself, and
  nothing else, except that the nodes of a tree's ``blocks`` see one another; windows are decided on positions, never on
  slots.
- Every compiler gives the logits of ``dense``, to rounding.
- Padding nodes see only themselves, and no other node sees them.
- A compiler that is ``bit_exact`` promises more, where the machine's libraries allow it: a node's logits have the same
  bits in every layout.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from specdec.layout import Compiler, Layout, Shapes
from specdec.tree import DraftTree

_PADDING_ID = 0


class MaskCompiler(BaseModel, Compiler):
    """A mask compiler: its configuration, and ``masks``, which subclasses define; see ``Compiler`` for attributes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def choices(cls, device: torch.device) -> Mapping[int, Self]:
        """Return the configurations that numerics may choose for models on a device, by preference.

        The highest preference is tried first; the built-in compilers have 0 or 1. Those below 0 are for
        ``numerics="exact"`` alone. By default there are none, and the compiler is used by its name.
        """
        return {}

    @abstractmethod
    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        """Return a mask for each kind of attention layer, as in ``Layout.masks``; ``positions`` is (rows, width)."""

    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        """Return the layout of one forward pass over a tree per row; called once per pass."""
        width = shapes.padded(max(map(len, trees)))
        padded = [(tree, length, width - len(tree)) for tree, length in zip(trees, lengths, strict=True)]
        input_ids = np.array([tree.tokens + [_PADDING_ID] * padding for tree, _, padding in padded])
        positions = np.array(
            [[length + d for d in tree.depths] + [length] * padding for tree, length, padding in padded]
        )
        masks = self.masks(trees, lengths, positions, shapes) if shapes.takes_trees else {}
        return Layout(
            lengths=tuple(lengths),
            num_nodes=tuple(map(len, trees)),
            input_ids=torch.from_numpy(input_ids),
            positions=torch.from_numpy(positions),
            masks=masks,
            columns=_wanted(trees),
            attention=self.attention if masks else None,
        )


def register_attention(name: str, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Give an attention function its name in transformers; a second call has no effect."""
    from transformers import AttentionInterface  # takes seconds

    AttentionInterface.register(name, function)


def _wanted(trees: Sequence[DraftTree]) -> tuple[int, ...]:
    """Return the nodes whose logits are read in any row; no other logits are computed."""
    return tuple(sorted(set().union(*(tree.nodes_wanted() for tree in trees))))


class AttentionKind(NamedTuple):
    """The scale of the scores, their bound, and attention sinks, (heads,); None for no bound and no sinks."""

    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @classmethod
    def of(cls, query: torch.Tensor, scaling: float | None, softcap: float | None, sinks: torch.Tensor | None) -> Self:
        """Return the kind of a call; without ``scaling`` the scale is that of the head size of ``query``."""
        return cls(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sinks)
