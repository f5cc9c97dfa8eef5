"""The inputs of a compiled graph for a layout: the nodes of all rows in order, and the places of the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from specdec.layout import Layout, PartialMask
from specdec_openvino.engine.blocks import BlockRow

_NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Packed:
    """The inputs of a pass by name; ``begins`` has the offset of each row's tokens, and their number at the end."""

    inputs: dict[str, np.ndarray]
    begins: list[int]

    def unpack(self, states: Sequence[np.ndarray], layout: Layout) -> list[torch.Tensor]:
        """Arrange each layer's states, (tokens, size), by row: each row's nodes, (nodes, layers, size).

        Copies, by numpy: the next pass writes into the memory of ``states``, and after OpenVINO's threads have run,
        torch's wait for milliseconds.
        """
        stretches = zip(self.begins, layout.num_nodes, strict=False)
        return [
            torch.from_numpy(np.stack([each[begin : begin + count] for each in states], 1))
            for begin, count in stretches
        ]


def pack(layout: Layout, rows: Sequence[BlockRow], block_size: int, tokens: Sequence[int], least: int) -> Packed:
    """Pack a layout's nodes, without its padding.

    Args:
        rows: the layout's rows, which have blocks for their tokens.
        block_size: slots of a block.
        tokens: the number of tokens of each row; if it has fewer nodes, the last one is repeated, and nothing sees it.
        least: the minimum number of columns for which logits are computed.
    """
    ids, positions, tables, seen = list[int](), list[int](), list[list[int]](), list[np.ndarray]()
    laid_out = zip(layout.input_ids.tolist(), layout.positions.tolist(), layout.lengths, layout.num_nodes, strict=True)
    for number, (row, (own_ids, own_positions, length, num_nodes)) in enumerate(zip(rows, laid_out, strict=True)):
        repeated = tokens[number] - num_nodes
        ids += own_ids[:num_nodes] + own_ids[num_nodes - 1 : num_nodes] * repeated
        positions += own_positions[:num_nodes] + own_positions[num_nodes - 1 : num_nodes] * repeated
        tables.append(row.blocks[: -(-(length + tokens[number]) // block_size)])
        seen.append(_seen(layout, number, repeated))
    begins = [0, *accumulate(tokens)]
    # If a row has no node for a column, its last node is repeated; columns are padded to the minimum in the same way.
    columns = [
        begin + min(column, num_nodes - 1)
        for begin, num_nodes in zip(begins, layout.num_nodes, strict=False)
        for column in layout.columns
    ]
    columns += columns[-1:] * (least - len(columns))
    i32 = {
        "past_lens": layout.lengths,
        "subsequence_begins": begins,
        "block_indices": [block for table in tables for block in table],
        "block_indices_begins": [0, *accumulate(map(len, tables))],
        "max_context_len": max(map(sum, zip(layout.lengths, tokens, strict=True))),
        "qq_bias_begins": [0, *accumulate(map(len, seen))],
    }
    inputs = {name: np.array(values, np.int32) for name, values in i32.items()}
    inputs["input_ids"], inputs["position_ids"] = np.array([ids]).T, np.array([positions]).T
    inputs["columns"], inputs["qq_bias"] = np.array(columns), seen[0] if len(seen) == 1 else np.concatenate(seen)
    return Packed(inputs, begins)


def _visible(mask: torch.Tensor, row: int, num_nodes: int, length: int) -> torch.Tensor:
    """Return which of a row's nodes each of them sees, boolean, ``(nodes, nodes)``."""
    nodes = slice(num_nodes), slice(length, length + num_nodes)
    if isinstance(mask, PartialMask):
        return mask.visible()[row][nodes]
    part = mask[row, 0][nodes]  # not the whole mask: it has a chunk's width and the longest context in every row
    return part if part.dtype == torch.bool else part == 0


def _seen(layout: Layout, row: int, repeated: int) -> np.ndarray:
    """Return which nodes each node of a row sees, as flat bytes; empty for a chain. Repeated nodes see everything."""
    num_nodes, length = layout.num_nodes[row], layout.lengths[row]
    if num_nodes == 1 or not layout.masks:
        return _NOTHING
    visible = _visible(next(iter(layout.masks.values())), row, num_nodes, length).numpy()
    is_chain = bool(visible[-1].all()) and visible.sum() == num_nodes * (num_nodes + 1) // 2
    if is_chain:
        return _NOTHING
    seen = np.ones((num_nodes + repeated, num_nodes + repeated), np.uint8)
    seen[:num_nodes, :num_nodes], seen[:num_nodes, num_nodes:] = visible, 0
    return seen.reshape(-1)
