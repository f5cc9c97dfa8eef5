"""The acceptance of a head's drafts at all positions of held-out text."""

from dataclasses import dataclass

import torch

from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.kept_states import KeptStates
from specdec.heads.training.packing import PackedRows


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
    training: Eagle3Training, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, depth: int
) -> torch.Tensor:
    """Return (rows, length, depth), True at (i, d) where the head's token for x_{i+2+d} is the text's.

    The head is fed the true tokens. Positions without that many following tokens count as wrong.
    """
    outs = training.outs(read, rows, visible, depth)
    found = []
    for step, out in enumerate(outs):
        drafted = training.head.target_ids[training.head.logits(out).argmax(-1)]
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
    training: Eagle3Training, target: KeptStates, rows: PackedRows, depth: int, batch: int
) -> Acceptance:
    """Measure a head on packed rows of answers.

    Args:
        training: has the head, on the target's device.
        target: computes the target's states.
        rows: on any device.
        depth: drafts per position.
        batch: rows per pass.
    """
    device = training.device
    accuracy, chain = torch.zeros(depth, device=device), torch.zeros(depth, device=device)
    count = torch.zeros((), device=device)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        states, part = target.of(part), part.to(device)
        visible = part.visible()
        correct = correct_drafts(training, states.layers, part, visible, depth)
        counted = part.is_answer.roll(-2, 1) & _reaches(part, 1 + depth)
        chosen = correct[counted].float()
        accuracy += chosen.sum(0)
        chain += chosen.cumprod(-1).sum(0)
        count += counted.sum()
    total = max(1.0, count.item())
    return Acceptance(tuple((accuracy / total).tolist()), tuple((chain / total).tolist()), int(total))
