"""The loss of unrolled steps: cross-entropy against the target's distribution over the draft vocabulary."""

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy, linear

from specdec.heads.eagle3 import Eagle3Head
from specdec.training.packing import PackedRows


def labels(rows: PackedRows, in_vocabulary: torch.Tensor | None, num_steps: int) -> torch.Tensor:
    """Return the flat indices of the tokens to predict: answers' tokens that every one of the steps can predict.

    Args:
        rows: on the CPU, so that no device is waited for.
        in_vocabulary: (vocab,) True for tokens of the draft vocabulary; None for all.
        num_steps: number of unrolled steps.
    """
    chosen = rows.is_answer & (rows.positions >= num_steps + 1)
    if in_vocabulary is not None:
        chosen = chosen & in_vocabulary[rows.tokens]
    return chosen.flatten().nonzero()[:, 0]


def unrolled_loss(
    head: Eagle3Head,
    outs: Sequence[torch.Tensor],
    final: torch.Tensor,
    output_rows: torch.Tensor,
    indices: torch.Tensor,
    weights: Sequence[float],
) -> torch.Tensor:
    """Return the weighted sum of the steps' mean cross-entropies.

    Args:
        head: the head.
        outs: per step (rows, length, hidden).
        final: (rows, length, target hidden), the target's states after its final norm.
        output_rows: (draft vocab, target hidden), the target's output matrix at the draft vocabulary.
        indices: flat indices of the tokens to predict, from ``labels``.
        weights: one per step.
    """
    with torch.no_grad():
        teacher = linear(final.flatten(0, 1)[indices - 1], output_rows).float().softmax(-1)
    total = torch.zeros((), device=final.device)
    for step, (out, weight) in enumerate(zip(outs, weights, strict=False)):
        logits = head.logits(out.flatten(0, 1)[indices - 2 - step])
        total = total + weight * cross_entropy(logits.float(), teacher)
    return total
