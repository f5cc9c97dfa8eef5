"""Evaluation of a model for Jacobi decoding on held-out text: the steps that it takes, and its loss."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specdec.training.consistency import logits_of
from specdec.training.jacobi_steps import JacobiRow, decode_by_jacobi
from specdec.training.packing import PackedRows
from specdec.training.settings import ConsistencySettings
from specdec.training.text import Text
from specdec.training.tuned_model import JacobiEvaluation

_TEXTS_AT_ONCE = 32
_ROWS_AT_ONCE = 8


def evaluate(
    model: Any, text: Text, rows: PackedRows, ends: Collection[int], settings: ConsistencySettings
) -> JacobiEvaluation:
    """Measure a model.

    Args:
        model: a causal language model.
        text: held-out documents; the model answers the first ones anew.
        rows: the same documents, packed.
        ends: tokens that end a text.
        settings: how many texts and tokens, and the guesses per step.
    """
    prompts = [text.document(index)[: int(text.answers[index])].tolist() for index in range(len(text))]
    tokens_per_step, num_tokens = _decode(model, prompts[: settings.evaluated_texts], ends, settings)
    return JacobiEvaluation(tokens_per_step, loss_on(model, rows), num_tokens)


def _decode(
    model: Any, prompts: Sequence[list[int]], ends: Collection[int], settings: ConsistencySettings
) -> tuple[float, int]:
    num_tokens = num_steps = 0
    for start in range(0, len(prompts), _TEXTS_AT_ONCE):
        rows = [
            JacobiRow(list(prompt), settings.evaluated_tokens, np.random.default_rng((settings.seed, start, index)))
            for index, prompt in enumerate(prompts[start : start + _TEXTS_AT_ONCE])
        ]
        for row in decode_by_jacobi(model, rows, settings.block_size, ends):
            num_tokens += len(row.tokens) - row.num_prompt
            num_steps += row.steps
    return num_tokens / max(1, num_steps), num_tokens


@torch.no_grad()
def loss_on(model: Any, rows: PackedRows) -> float:
    """Return the mean loss of the rows' answers, in nats per token."""
    total, count = 0.0, 0
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE].to(model.device)
        logits = logits_of(model, part.tokens, part.positions, part.visible())
        answers = part.is_answer.flatten().nonzero()[:, 0]
        chosen = logits.flatten(0, 1)[answers - 1].float()
        total += cross_entropy(chosen, part.tokens.flatten()[answers], reduction="sum").item()
        count += len(answers)
    return total / max(1, count)
