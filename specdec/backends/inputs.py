"""The inputs and outputs of a pass of torch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

Outputs = tuple[torch.Tensor, ...]  # the logits, and hidden states


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors that a pass reads: ids and positions, (rows, width), masks by name, and the columns wanted."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    masks: Mapping[str, torch.Tensor]
    columns: torch.Tensor | None

    def kind(self) -> tuple[object, ...]:
        """Return what a program is specific to: one row or several, one node or several, and which masks are shared."""
        rows, width = self.input_ids.shape
        masks = [id(mask) for mask in self.masks.values()]
        return rows == 1, width == 1, tuple(map(masks.index, masks))

    def named(self) -> dict[str, torch.Tensor]:
        """Return the tensors by their names in a program."""
        columns = {} if self.columns is None else {"columns": self.columns}
        masks = {f"mask_{index}": mask for index, mask in enumerate(self.masks.values())}
        return {"input_ids": self.input_ids, "positions": self.positions, **columns, **masks}
