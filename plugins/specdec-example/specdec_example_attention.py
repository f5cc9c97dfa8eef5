"""A complete third-party attention: a mask of a fixed shape, its compiler, and the function that reads the mask."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from specdec import DraftTree, ModelError, hookimpl
from specdec.layout import FixedMask, Shapes
from specdec.masks import MaskCompiler, ancestors, first_seen, register_attention

NAME = "specdec_example_tree_bits"  # transformers' name of the attention
ROW, FIRST, STOP, BITS = range(4)  # the columns of a mask; a bit for each node of the tree follows


class TreeBits(FixedMask):
    """The slots that each node sees, int32, ``(rows, 1, width, 3 + width)``.

    The row of its keys in the cache; the first slot of the text that it sees, and where the text ends; and 1 for each
    node of its tree that it sees. The nodes' slots follow the text's.
    """

    def numbered_from(self, first: int) -> torch.Tensor:
        numbers = self.as_subclass(torch.Tensor).clone()
        numbers[..., ROW] += first
        return numbers

    def visible(self) -> torch.Tensor:
        bits = self.as_subclass(torch.Tensor)[:, 0]
        return seen_slots(bits, int(bits[..., STOP].max()) + bits.shape[1])


class TreeBitsCompiler(MaskCompiler):
    """A bit for each node of the tree that a node sees, for static shapes."""

    attention: ClassVar[str | None] = NAME
    has_fixed_shapes: ClassVar[bool] = True

    def register(self) -> None:
        register_attention(NAME, tree_bits_attention)

    def masks(
        self, trees: Sequence[DraftTree], lengths: Sequence[int], positions: np.ndarray, shapes: Shapes
    ) -> dict[str, torch.Tensor]:
        rows, width = positions.shape
        masks = dict[str, torch.Tensor]()
        for kind, window in shapes.attention.items():
            closures = np.stack([ancestors(tree, width, kind) for tree in trees])
            first = first_seen(window, positions)[:, :, None]
            bits = np.zeros((rows, 1, width, BITS + width), np.int32)
            bits[:, 0, :, ROW] = np.arange(rows)[:, None]
            bits[:, 0, :, FIRST] = first[:, :, 0]
            bits[:, 0, :, STOP] = np.array(lengths)[:, None]
            bits[:, 0, :, BITS:] = closures & (positions[:, None] >= first)
            for row, tree in enumerate(trees):  # padding sees itself alone: no slot of the text
                bits[row, 0, len(tree) :, FIRST] = lengths[row]
            masks[kind] = torch.tensor(bits).as_subclass(TreeBits)
        return masks


def seen_slots(bits: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Return which slots each node sees, bool, ``(rows, width, slots)``; no number is read on the host."""
    slots = torch.arange(num_slots, device=bits.device)
    node, width = slots - bits[..., STOP, None], bits.shape[1]
    is_text = (slots >= bits[..., FIRST, None]) & (node < 0)
    is_seen = bits[..., BITS:].gather(2, node.clamp(0, width - 1).long()) > 0
    return is_text | ((node >= 0) & (node < width) & is_seen)


def tree_bits_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention; called by transformers in each layer. A kernel of your own takes the place of this function.

    Args:
        query: ``(rows, heads, width, size)``.
        key, value: ``(rows of the cache, groups, slots, size)``.
        attention_mask: the numbers of ``TreeBits``.

    Returns:
        ``(rows, width, heads, size)``, and None for the weights.
    """
    if unsupported := [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]:
        raise ModelError(f"{NAME} doesn't support {' and '.join(unsupported)}")
    bits = attention_mask.as_subclass(torch.Tensor)[:, 0]
    of_row = bits[:, 0, ROW].long()
    seen = seen_slots(bits, key.shape[2])[:, None]
    is_grouped = query.shape[1] != key.shape[1]
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key[of_row], value[of_row], attn_mask=seen, scale=scaling, enable_gqa=is_grouped
    )
    return output.transpose(1, 2), None


@hookimpl
def specdec_masks() -> dict[str, type[MaskCompiler]]:
    return {"tree_bits": TreeBitsCompiler}
