"""The layout of one forward pass, as it flows between mask compilers, backends and the loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch._C import _disabled_torch_function_impl

from specdec.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Window:
    """A limit on how far back a layer sees, in positions.

    ``sliding``: query - key < size. ``chunked``: both in the same block of ``size``.
    """

    kind: Literal["sliding", "chunked"]
    size: int


@dataclass(frozen=True, slots=True)
class Shapes:
    """The facts of a backend that a compiler and the core must know.

    ``attention`` names each kind of attention layer, with its window if it has one. ``max_positions`` of None means no
    limit. A backend that takes chains only is never given a branching tree. ``row_multiple``: passes are padded to a
    multiple of this many rows, because some kernels round a row differently when few rows accompany it. ``widths``: the
    widths, ascending, that layouts are padded to first where a backend has fixed shapes. ``chunk``: tokens of a prompt
    that are read in one pass; chunks begin at its multiples, so that a prompt is always computed in the same way.
    ``filled_to``: the numbers of nodes, ascending, that the backend itself fills its passes up to, all rows together;
    more than the last are fed as they are. ``least_width``: nodes that it fills each row up to before. ``num_layers``:
    those whose hidden states it gives, besides the embeddings; None where that isn't known.
    """

    vocab_size: int
    max_positions: int | None
    takes_trees: bool
    attention: Mapping[str, Window | None]
    dtype: torch.dtype
    device: torch.device
    row_multiple: int = 1
    widths: tuple[int, ...] = ()
    chunk: int = 256
    num_layers: int | None = None
    filled_to: tuple[int, ...] = ()
    least_width: int = 1

    def padded(self, width: int) -> int:
        """Return the number of nodes that are fed for each row where ``width`` are wanted."""
        fixed = next((fixed for fixed in self.widths if fixed >= width), width)
        return fixed + -fixed % self.row_multiple


class PartialMask(torch.Tensor):
    """A mask of columns of its own, which knows what they mean.

    It is a tensor with four dimensions, since transformers hands any such to its layers untouched.
    """

    # What is computed from it is an ordinary tensor.
    __torch_function__ = _disabled_torch_function_impl  # type: ignore[assignment]  # as in torch's own Parameter

    def visible(self) -> torch.Tensor:
        """Return which slots each node sees, boolean, (rows, width, slots)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Layout:
    """One forward pass, laid out.

    ``input_ids`` and ``positions``: (rows, width). ``masks``: per kind of attention, (rows, 1, width, slots), boolean
    or additive (0 where visible), or a ``PartialMask``; empty where each row is a chain that the model's own causal
    mask serves.
    ``columns``: the nodes whose logits are wanted in any row, ascending. ``attention``: the name of the attention that
    reads the masks, None for the model's own. ``first``: the number of the first row; the others lie behind it.
    ``hidden``: the layers whose hidden states are wanted, as transformers numbers them: 0 for the embeddings, -1 for
    the last layer behind its norm. ``trees``: what is laid out, a tree per row, as the target says.
    """

    lengths: tuple[int, ...]
    num_nodes: tuple[int, ...]
    input_ids: torch.Tensor
    positions: torch.Tensor
    masks: Mapping[str, torch.Tensor]
    columns: tuple[int, ...]
    attention: str | None = None
    first: int = 0
    hidden: tuple[int, ...] = ()
    trees: tuple[DraftTree, ...] = ()

    @property
    def width(self) -> int:
        """Nodes per row, padding included."""
        return self.input_ids.shape[1]

    def visible(self, kind: str) -> torch.Tensor:
        """Return which slots each node sees in a kind of layer that has a mask, boolean, (rows, width, slots)."""
        mask = self.masks[kind]
        if isinstance(mask, PartialMask):
            return mask.visible()
        return mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0


class Compiler(Protocol):
    """A mask compiler as backends and the loop know it; ``specdec/masks/base.py`` says what it promises."""

    @property
    def attention(self) -> str | None:
        """The name under which transformers knows the attention that reads the masks; None for the model's own."""

    @property
    def bit_exact(self) -> bool:
        """True if logits are promised to have the same bits in every layout."""

    @property
    def max_depth(self) -> int | None:
        """The greatest depth that a tree may have; None where that doesn't matter."""

    def register(self) -> None:
        """Make ``attention`` known to transformers."""

    def refuses(self, dtype: torch.dtype) -> str:
        """Return the reason why its attention doesn't serve a dtype, or "" where it does."""

    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        """Lay out one forward pass over a tree per row."""
