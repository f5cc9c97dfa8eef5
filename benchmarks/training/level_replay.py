"""Replays of answers with trees of heads that predict all depths at once, as their strategies build them."""

import torch

from specdec.strategies.trained_heads.levels import Levels
from specdec.training.acceptance import Answer, TreeShape, num_accepted
from specdec.training.base import DEPTH, HeadTraining


@torch.no_grad()
def replay_levels(training: HeadTraining, answer: Answer, shape: TreeShape) -> int:
    """The steps in which the trees of the most probable paths give an answer; ``shape.width`` candidates per depth."""
    rows, text = answer.row(), answer.tokens.tolist()
    outs = training.outs(answer.read[None], rows, rows.visible(), DEPTH)
    first = answer.num_prompt - 1
    found = [
        training.logits(out[0, first:], step).float().log_softmax(-1).topk(shape.width) for step, out in enumerate(outs)
    ]
    tokens = torch.stack([training.target_ids[each.indices] for each in found], 1).tolist()
    log_probs = torch.stack([each.values for each in found], 1).tolist()
    known, steps = answer.num_prompt + 1, 1
    while known < len(text):
        levels = Levels(tokens[known - 2 - first], log_probs[known - 2 - first])
        drafted = levels.candidates(shape.num_nodes, DEPTH)
        known += num_accepted(drafted.tokens, drafted.parents, text[known:]) + 1
        steps += 1
    return steps
