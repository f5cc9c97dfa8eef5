"""A layout as a compiled graph takes it: the nodes of all rows one behind another, and where each row lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specdec.layout import Layout
from specdec_openvino.blocks import BlockRow


@dataclass(frozen=True, slots=True)
class Packed:
    """The inputs of a pass by name, and where a layout's nodes are among its tokens.

    ``places``: of the nodes, (nodes,), in the order of rows; ``is_node``: which places of the layout they have,
    boolean, (rows, width).
    """

    inputs: dict[str, np.ndarray]
    places: np.ndarray
    is_node: np.ndarray

    def unpack(self, states: torch.Tensor) -> torch.Tensor:
        """States of tokens, (tokens, size), as those of a layout's nodes, (rows, width, size); padding has zeros."""
        unpacked = states.new_zeros(*self.is_node.shape, states.shape[-1])
        unpacked[torch.from_numpy(self.is_node)] = states[torch.from_numpy(self.places)]
        return unpacked


def pack(layout: Layout, rows: Sequence[BlockRow], block_size: int, least: int) -> Packed:
    """Pack a layout's nodes, without its padding.

    Args:
        rows: the layout's; they have blocks for ``least`` nodes and more.
        block_size: slots of a block.
        least: tokens of a row; the last node is repeated in rows that have fewer. Nothing sees such a token.
    """
    lengths, num_nodes = np.array(layout.lengths), np.array(layout.num_nodes)
    counts = np.maximum(num_nodes, least)
    begins = np.cumsum([0, *counts])
    width = max(layout.width, least)
    column = np.arange(width)
    taken = np.minimum(column, num_nodes[:, None] - 1)  # a repeated node where a row has no more
    is_token = column < counts[:, None]
    ids, positions = (
        np.take_along_axis(each.numpy(), taken, 1)[is_token][:, None] for each in (layout.input_ids, layout.positions)
    )
    columns = np.minimum(np.array(layout.columns), num_nodes[:, None] - 1) + begins[:-1, None]
    wanted = np.concatenate([columns.reshape(-1), np.repeat(columns[-1, -1:], max(0, least - columns.size))])
    num_blocks = -(-(lengths + counts) // block_size)
    tables = [row.blocks[:count] for row, count in zip(rows, num_blocks, strict=True)]
    seen = [_seen(layout, row) for row in range(len(rows))]
    i32 = {
        "past_lens": lengths,
        "subsequence_begins": begins,
        "block_indices": np.concatenate(tables),
        "block_indices_begins": np.cumsum([0, *map(len, tables)]),
        "max_context_len": (lengths + counts).max(),
        "qq_bias_begins": np.cumsum([0, *map(len, seen)]),
    }
    inputs = {"input_ids": ids, "position_ids": positions, "columns": wanted, "qq_bias": np.concatenate(seen)}
    inputs |= {name: np.asarray(values, np.int32) for name, values in i32.items()}
    is_node = column[: layout.width] < num_nodes[:, None]
    return Packed(inputs, (begins[:-1, None] + column[: layout.width])[is_node], is_node)


def _seen(layout: Layout, row: int) -> np.ndarray:
    """The nodes that each node of a row sees, flat and of bytes; empty for a chain."""
    num_nodes, length = layout.num_nodes[row], layout.lengths[row]
    nothing = np.zeros(0, np.uint8)
    if num_nodes == 1 or not layout.masks:
        return nothing
    visible = layout.visible(next(iter(layout.masks)))[row, :num_nodes, length : length + num_nodes].numpy()
    is_chain = bool(visible[-1].all()) and visible.sum() == num_nodes * (num_nodes + 1) // 2
    return nothing if is_chain else visible.astype(np.uint8).reshape(-1)
