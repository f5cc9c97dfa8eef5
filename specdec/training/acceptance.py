"""The acceptance of a head's drafts: at all positions of held-out text, and in replays of greedy answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.heads.drafting import grow
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.pair_cache import PairCache
from specdec.heads.torch_runner import TorchRunner
from specdec.training.base import HeadTraining
from specdec.training.packing import PackedRows
from specdec.training.target import TargetStates


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Shares of positions, by depth.

    Attributes:
        accuracy: the draft token of a depth is right, true tokens before it.
        chain: it and all before it are right.
        num_positions: positions counted.
    """

    accuracy: tuple[float, ...]
    chain: tuple[float, ...]
    num_positions: int

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens per step of a chain with all depths: one, and the accepted ones."""
        return 1 + sum(self.chain)


def correct_drafts(
    training: HeadTraining, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, depth: int
) -> torch.Tensor:
    """Return (rows, length, depth), True at (i, d) where the head's token for x_{i+2+d} is the text's.

    Heads that read drafted tokens are fed the true ones. Positions without that many following tokens count as wrong.
    """
    outs = training.outs(read, rows, visible, depth)
    found = []
    for step, out in enumerate(outs):
        drafted = training.target_ids[training.logits(out, step).argmax(-1)]
        shift = 2 + step
        found.append((drafted == rows.tokens.roll(-shift, 1)) & _reaches(rows, shift))
    return torch.stack(found, -1)


def _reaches(rows: PackedRows, shift: int) -> torch.Tensor:
    """True at positions whose document has a token ``shift`` places later."""
    same = (rows.documents.roll(-shift, 1) == rows.documents) & (rows.documents >= 0)
    same[:, max(0, same.shape[1] - shift) :] = False
    return same


@torch.no_grad()
def held_out_acceptance(
    training: HeadTraining, target: TargetStates, rows: PackedRows, depth: int, batch: int
) -> Acceptance:
    """Measure a head on packed rows of answers.

    Args:
        training: has the head, on the target's device.
        target: runs the target.
        rows: on any device.
        depth: drafts per position.
        batch: rows per pass.
    """
    device = training.device
    accuracy, chain = torch.zeros(depth, device=device), torch.zeros(depth, device=device)
    count = torch.zeros((), device=device)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch].to(device)
        visible = part.visible()
        read = training.read(target.of(part.tokens, part.positions, visible))
        correct = correct_drafts(training, read, part, visible, depth)
        counted = part.is_answer.roll(-2, 1) & _reaches(part, 1 + depth)
        chosen = correct[counted].float()
        accuracy += chosen.sum(0)
        chain += chosen.cumprod(-1).sum(0)
        count += counted.sum()
    total = max(1.0, count.item())
    return Acceptance(tuple((accuracy / total).tolist()), tuple((chain / total).tolist()), int(total))


@dataclass(frozen=True, slots=True)
class Answer:
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
def chain_drafts(training: HeadTraining, answer: Answer, depth: int) -> torch.Tensor:
    """Return (length, depth), True where the head's chain from a position is right up to a depth."""
    rows = answer.row()
    return correct_drafts(training, answer.read[None], rows, rows.visible(), depth)[0].cumprod(-1).bool()


def replay_chains(right: torch.Tensor, answer: Answer, depth: int) -> int:
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
def replay_trees(head: Eagle3Head, answers: Sequence[Answer], shape: TreeShape) -> list[int]:
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
