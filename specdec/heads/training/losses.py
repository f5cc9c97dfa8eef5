"""The inputs of the loss of drafted steps: a batch, the tokens to predict, and the target's distribution."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from specdec.heads.logits_map import LogitsMap
from specdec.heads.training.packing import PackedRows

if TYPE_CHECKING:
    from specdec.heads.training.target import States


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Rows of one update, on the device, and what their loss needs.

    Attributes:
        rows: the text.
        visible: (rows, length, length), True where a position sees another.
        states: the target's.
        indices: flat indices of the tokens to predict, from ``labels``.
        num_answer_tokens: of the rows.
    """

    rows: PackedRows
    visible: torch.Tensor
    states: "States"
    indices: torch.Tensor
    num_answer_tokens: int


def labels(rows: PackedRows, in_vocabulary: torch.Tensor | None, num_steps: int) -> torch.Tensor:
    """Return the flat indices of the tokens to predict: answers' tokens that every one of the steps can predict.

    Args:
        rows: on the CPU, so that no device is waited for.
        in_vocabulary: (vocab,) True for tokens of the draft vocabulary; None for all.
        num_steps: number of steps.
    """
    chosen = rows.is_answer & (rows.positions >= num_steps + 1)
    if in_vocabulary is not None:
        chosen = chosen & in_vocabulary[rows.tokens]
    return chosen.flatten().nonzero()[:, 0]


@torch.no_grad()
def distribution(final: torch.Tensor, output_rows: torch.Tensor, logits_map: LogitsMap) -> torch.Tensor:
    """Return the target's distribution over the draft vocabulary, (…, draft vocab), after final states (…, hidden).

    Args:
        final: the states.
        output_rows, logits_map: the target's, of the draft vocabulary.
    """
    return logits_map(linear(final, output_rows)).float().softmax(-1)
