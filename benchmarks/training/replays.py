"""Replays of a target's greedy answers with a head's chains and trees, to count the steps that they take."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.heads.drafting import grow
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.pair_cache import PairCache
from specdec.heads.torch_runner import TorchRunner
from specdec.heads.training.acceptance import correct_drafts
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.packing import PackedRows


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """A prompt with the target's greedy answer, and the target's states that a head reads.

    Attributes:
        category: the prompt's category.
        tokens: (length,) prompt and answer.
        num_prompt: tokens of the prompt.
        read: (length, states size), in the head's dtype.
    """

    category: str
    tokens: torch.Tensor
    num_prompt: int
    read: torch.Tensor

    @property
    def num_answer(self) -> int:
        return len(self.tokens) - self.num_prompt

    def row(self) -> PackedRows:
        """Return prompt and answer as a row of one document."""
        shape, device = (1, len(self.tokens)), self.tokens.device
        return PackedRows(
            self.tokens[None],
            torch.zeros(shape, dtype=torch.int32, device=device),
            torch.arange(len(self.tokens), device=device)[None],
            torch.ones(shape, dtype=torch.bool, device=device),
        )


@torch.no_grad()
def chain_drafts(training: Eagle3Training, answer: TargetAnswer, depth: int) -> torch.Tensor:
    """Return (length, depth), True where the head's chain from a position is right up to a depth."""
    rows = answer.row()
    return correct_drafts(training, answer.read[None], rows, rows.visible(), depth)[0].cumprod(-1).bool()


def replay_chains(right: torch.Tensor, answer: TargetAnswer, depth: int) -> int:
    """Return the steps in which chains of ``depth`` tokens give the answer; the prompt's pass is one of them.

    Args:
        right: of ``chain_drafts``, with at least that depth.
        answer: the text to be given.
        depth: drafted tokens per step.
    """
    accepted = right[:, :depth].sum(-1).tolist()
    known, steps = answer.num_prompt + 1, 1
    while known < len(answer.tokens):
        known += accepted[known - 2] + 1
        steps += 1
    return steps


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Nodes fed per level, levels after the first, and nodes kept."""

    width: int
    depth: int
    num_nodes: int


@torch.no_grad()
def replay_trees(head: Eagle3Head, answers: Sequence[TargetAnswer], shape: TreeShape) -> list[int]:
    """Return the steps in which drafted trees give each answer, all answers in one batch."""
    caches, runner = [PairCache(head) for _ in answers], TorchRunner(head, shape.width)
    known = [answer.num_prompt + 1 for answer in answers]
    steps = [1] * len(answers)
    while active := [row for row, answer in enumerate(answers) if known[row] < len(answer.tokens)]:
        ranges = [slice(len(caches[row]), known[row] - 1) for row in active]
        states = [answers[row].read[pairs] for row, pairs in zip(active, ranges, strict=True)]
        tokens = [
            answers[row].tokens[pairs.start + 1 : pairs.stop + 1].tolist()
            for row, pairs in zip(active, ranges, strict=True)
        ]
        here = [caches[row] for row in active]
        trees = grow(runner, here, states, tokens, shape.width, shape.depth, shape.num_nodes)
        for row, drafted, parents in zip(active, trees.tokens.tolist(), trees.parents.tolist(), strict=True):
            known[row] += num_accepted(drafted, parents, answers[row].tokens[known[row] :].tolist()) + 1
            steps[row] += 1
    return steps


def num_accepted(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens of a text a tree has as a path from the root, which is the parent -1."""
    children = {edge: node for node, edge in enumerate(zip(parents, tokens, strict=True))}
    node, length = -1, 0
    while length < len(text) and (node, text[length]) in children:
        node, length = children[node, text[length]], length + 1
    return length
