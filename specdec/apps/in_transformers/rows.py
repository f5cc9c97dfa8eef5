"""The rows of a padded batch, without their padding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specdec.errors import RequestError


@dataclass(frozen=True, slots=True)
class PaddedRow:
    """Row ``number`` of ``input_ids``: its left ``padding``, (padding,), and the prompt's ids."""

    number: int
    padding: torch.Tensor
    prompt: list[int]


def rows_of(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[PaddedRow]:
    """Return the rows of ``input_ids``, (batch, tokens), by an attention mask of the same shape, 0 for padding.

    Raises:
        RequestError: if a row is padded elsewhere than on the left, or is padding only.
    """
    if attention_mask is None:
        return [PaddedRow(number, row[:0], row.tolist()) for number, row in enumerate(input_ids)]
    if attention_mask.shape != input_ids.shape:
        raise RequestError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids {tuple(input_ids.shape)}"
        )
    rows = []
    for number, (ids, mask) in enumerate(zip(input_ids, attention_mask.bool().to(input_ids.device), strict=True)):
        num_padding = int((~mask).sum())
        if mask[:num_padding].any():
            raise RequestError(f"row {number} is padded elsewhere than on its left: tokenize with padding_side='left'")
        if num_padding == len(ids):
            raise RequestError(f"row {number} has only padding")
        rows.append(PaddedRow(number, ids[:num_padding], ids[num_padding:].tolist()))
    return rows


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
