"""The rows of a padded batch, without their padding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specdec.inputs.prepared import paddings_of


@dataclass(frozen=True, slots=True)
class PaddedRow:
    """Row ``number`` of ``input_ids``: its left ``padding``, (padding,), and the prompt's ids."""

    number: int
    padding: torch.Tensor
    prompt: list[int]


def rows_of(input_ids: torch.Tensor, inputs: Mapping[str, Any]) -> list[PaddedRow]:
    """Return the rows of ``input_ids``, (batch, tokens), by the mask among the inputs; raises as ``paddings_of``."""
    return [
        PaddedRow(number, ids[:num_padding], ids[num_padding:].tolist())
        for number, (ids, num_padding) in enumerate(zip(input_ids, paddings_of(input_ids, inputs), strict=True))
    ]


@dataclass(frozen=True)
class BatchProcessor:
    """A processor or criterion made for a padded batch, called for one row without its padding.

    It receives the row with its padding, as in the batch. If it distinguishes rows, it receives ``num_rows`` copies,
    and the result for the row's own number is used.
    """

    function: Callable[[Any, Any], Any]
    row: PaddedRow
    num_rows: int = 1
    is_path_pure: bool = False

    def __call__(self, input_ids: torch.Tensor, scores: Any) -> Any:
        if len(self.row.padding):
            padding = self.row.padding.to(input_ids.device)[None].expand(len(input_ids), -1)
            input_ids = torch.cat([padding, input_ids], -1)
        if self.num_rows == 1:
            return self.function(input_ids, scores)
        answers = self.function(input_ids.expand(self.num_rows, -1), scores.repeat(self.num_rows, 1))
        return answers[self.row.number : self.row.number + 1]

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))
