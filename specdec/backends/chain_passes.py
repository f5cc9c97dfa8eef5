"""Forward passes over chains, for models that don't support trees.

The cache decides which rows share a pass, and which committed tokens a pass reads again (``RaggedCache.passes``). A row
alone is read under the model's own causal mask. Several rows, whose lengths may differ, are padded on the right, and
each has a causal mask of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specdec.backends.hidden_states import stacked
from specdec.backends.inputs import Inputs
from specdec.backends.output import Output
from specdec.backends.placement import RowTokens
from specdec.layout import Layout, Shapes
from specdec.models.architecture import STATES

_PADDING_ID = 0


class ChainPasses:
    """The passes over the chains of a layout: their inputs, and the output that they add up to.

    Attributes:
        chains: what the layout adds to each row.
    """

    def __init__(self, layout: Layout, shapes: Shapes) -> None:
        self._layout, self._shapes = layout, shapes
        self._columns = torch.tensor(layout.columns or (0,), device=shapes.device)
        self.chains: list[RowTokens] = []
        self._wanted: dict[int, list[int]] = {}  # positions
        for number, (length, num_nodes) in enumerate(zip(layout.lengths, layout.num_nodes, strict=True)):
            row = layout.first + number
            tokens = layout.trees[number].tokens if layout.trees else layout.input_ids[number, :num_nodes].tolist()
            self.chains.append(RowTokens(row, length, tokens, layout.num_prefix[number] if layout.num_prefix else 0))
            self._wanted[row] = [length + column for column in layout.columns if column < num_nodes]
        self._logits: dict[int, list[torch.Tensor]] = {row: [] for row in self._wanted}
        self._states: dict[int, list[list[torch.Tensor]]] = {row: [] for row in self._wanted}
        self._num_reread = dict.fromkeys(self._wanted, 0)
        self._num_passes = 0

    def inputs(self, parts: Sequence[RowTokens]) -> Inputs:
        """Return the inputs of a pass over some rows, with masks if they are several."""
        layout, device, width = self._layout, self._shapes.device, max(len(part.tokens) for part in parts)
        masks = causal_masks([part.start for part in parts], width, self._shapes) if len(parts) > 1 else {}
        if width == layout.width and [*parts] == self.chains:
            return Inputs(layout.input_ids.to(device), layout.positions.to(device), masks, self._columns)
        ids = [[*part.tokens, *[_PADDING_ID] * (width - len(part.tokens))] for part in parts]
        positions = [[min(part.start + node, part.stop - 1) for node in range(width)] for part in parts]
        columns = sorted({place for part in parts for place in self._places(part)}) or [width - 1]
        return Inputs(
            torch.tensor(ids, device=device),
            torch.tensor(positions, device=device),
            masks,
            torch.tensor(columns, device=device),
        )

    def add(self, parts: Sequence[RowTokens], logits: torch.Tensor, states: Sequence[torch.Tensor]) -> None:
        """Add a pass's output: logits, ``(rows, columns, vocab)``, and each layer's states, ``(rows, width, size)``."""
        layout, self._num_passes = self._layout, self._num_passes + 1
        columns = sorted({place for part in parts for place in self._places(part)})
        column_of = {column: index for index, column in enumerate(columns)}
        for index, part in enumerate(parts):
            chosen = [column_of[place] for place in self._places(part)]
            self._logits[part.row].append(logits[index, chosen])
            self._states[part.row].append([state[index, : len(part.tokens)] for state in states])
            reread = layout.lengths[part.row - layout.first] - part.start
            self._num_reread[part.row] = max(self._num_reread[part.row], reread)

    def _places(self, part: RowTokens) -> list[int]:
        """Return where a pass's tokens are whose logits are wanted."""
        return [position - part.start for position in self._wanted[part.row] if part.start <= position < part.stop]

    def output(self) -> Output:
        """Return the output of all passes."""
        layout = self._layout
        logits = [*map(torch.cat, self._logits.values())]
        padded = [torch.nn.functional.pad(each, (0, 0, 0, len(layout.columns) - len(each))) for each in logits]
        hidden = [self._states_of(chain) for chain in self.chains]
        num_reread = list(self._num_reread.values())
        return Output(torch.stack(padded), layout.columns, hidden, layout.hidden, num_reread, self._num_passes)

    def _states_of(self, chain: RowTokens) -> torch.Tensor:
        """Return all layers' states at a row's nodes, ``(nodes, layers, size)``."""
        num_nodes = len(chain.tokens)
        return stacked([torch.cat(each)[-num_nodes:] for each in zip(*self._states[chain.row], strict=True)])


def causal_masks(starts: Sequence[int], width: int, shapes: Shapes) -> Mapping[str, torch.Tensor]:
    """Return additive masks, ``(rows, 1, width, slots)``, by kind of attention.

    Node i of a row sees the slots up to its own, ``starts[row] + i``, in windows those within the window.
    """
    slots = torch.arange(max(starts) + width, device=shapes.device)
    own = (torch.tensor(starts, device=shapes.device)[:, None] + slots[:width])[..., None]
    masks = {}
    for kind, window in shapes.attention.items():
        masked = (slots > own) if window is None else (slots > own) | ~window.contains(own, slots)
        mask = torch.zeros(masked.shape, dtype=shapes.dtype, device=shapes.device)
        masks[kind] = mask.masked_fill_(masked, torch.finfo(shapes.dtype).min)[:, None]
    return masks


def mask_argument(masks: Mapping[str, torch.Tensor]) -> Any:
    """Return masks by kind of attention as a model's forward takes them."""
    if len(masks) < 2:
        return next(iter(masks.values()), None)
    # A layer with both attention and a state has its own kind; layers without attention need no mask.
    return {**{kind: masks.get(attention) for kind, attention in STATES.items()}, **masks}
