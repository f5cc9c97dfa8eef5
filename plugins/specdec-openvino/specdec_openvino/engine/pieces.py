"""A pass in pieces, where the engine rounds the tokens of a large pass differently from those of a small one.

On processors without AVX-512, OpenVINO adds up the products of many tokens in another order: from 81 tokens on with
SmolLM2-135M, and probably from fewer with wider matrices. In passes of fewer tokens all have the same bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch

from specdec.layout import Layout

Run = Callable[[Layout], tuple[torch.Tensor, list[torch.Tensor]]]


def run_in_pieces(layout: Layout, most: int, least: int, run: Run) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a layout's logits and hidden states, as ``run`` does, by passes that compute ``most`` of each at most.

    Args:
        layout: of chains.
        least: tokens of a row that are computed at least.
        run: runs one pass.
    """
    groups = _groups(layout, most, least)
    results = [
        run(rows) if max(rows.num_nodes[0], len(rows.columns)) <= most else _run_row(rows, most, run) for rows in groups
    ]
    return torch.cat([logits for logits, _ in results]), [row for _, hidden in results for row in hidden]


def _groups(layout: Layout, most: int, least: int) -> Iterator[Layout]:
    """Yield consecutive rows that are computed together, or one row that has too many tokens or logits."""
    begin, num_tokens = 0, 0
    for row, num_nodes in enumerate(layout.num_nodes):
        num_tokens += max(least, num_nodes)
        if row > begin and max(num_tokens, (row - begin + 1) * len(layout.columns)) > most:
            yield _rows(layout, begin, row)
            begin, num_tokens = row, max(least, num_nodes)
    yield _rows(layout, begin, len(layout.num_nodes))


def _rows(layout: Layout, begin: int, end: int) -> Layout:
    return replace(
        layout,
        first=layout.first + begin,
        lengths=layout.lengths[begin:end],
        num_nodes=layout.num_nodes[begin:end],
        input_ids=layout.input_ids[begin:end],
        positions=layout.positions[begin:end],
        masks={},  # of chains, which need none
        trees=layout.trees[begin:end],
        num_prefix=layout.num_prefix[begin:end],
    )


def _run_row(layout: Layout, most: int, run: Run) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Run the tokens of one row in passes of about equal size; each reads the keys and values of those before."""
    (length,), (num_nodes,) = layout.lengths, layout.num_nodes
    num_pieces = -(-num_nodes // most)
    cuts = [num_nodes * piece // num_pieces for piece in range(num_pieces + 1)]
    columns = sorted({min(column, num_nodes - 1) for column in layout.columns})
    places = [min(place, len(columns) - 1) for place in range(len(layout.columns))]  # those it lacks repeat its last
    logits, hidden = list[torch.Tensor](), list[list[torch.Tensor]]()
    for begin, end in pairwise(cuts):
        own = tuple(column - begin for column in columns if begin <= column < end)
        piece = replace(
            layout,
            lengths=(length + begin,),
            num_nodes=(end - begin,),
            input_ids=layout.input_ids[:, begin:end],
            positions=layout.positions[:, begin:end],
            columns=own or (0,),
        )
        found, states = run(piece)
        logits.append(found[:, : len(own)])
        hidden.append(states)
    return torch.cat(logits, 1)[:, places], [torch.cat(states) for states in zip(*hidden, strict=True)]
