"""The outcome of a head's training run, the state from which it goes on, and its result."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from specdec.heads.training.acceptance import Acceptance


@dataclass
class RunOutcome:
    """The outcome of a training run.

    Attributes:
        num_tokens: tokens trained on, prompts and padding included.
        num_answer_tokens: tokens of answers trained on.
        seconds: spent, evaluations included.
        losses: (update, mean loss of the updates since the last evaluation), at each evaluation after updates.
        evaluations: (update, acceptance), the last of which is the end's.
        best: the update after which the head that was kept was evaluated.
        num_updates: updates so far.
    """

    num_tokens: int = 0
    num_answer_tokens: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    evaluations: list[tuple[int, Acceptance]] = field(default_factory=list)
    best: int = 0
    num_updates: int = 0

    def share(self, num_updates: int, seconds: float | None) -> float:
        """Return how much of a run is done: of its ``seconds``, or without these of its ``num_updates``."""
        return self.num_updates / num_updates if seconds is None else self.seconds / seconds


@dataclass(frozen=True, slots=True)
class Resumed:
    """The state of a run after an evaluation.

    Attributes:
        run: its outcome so far.
        tensors: by name, of the head, of the best head before it if that is another one, of the optimizer and the
            factors on the target's states.
    """

    run: RunOutcome
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The result of ``train_head``.

    Attributes:
        folder: the head's folder, for ``eagle3:head=FOLDER``.
        digest: of the model; "" if its weights can't be read.
        acceptance: of the best head, on held-out text.
        num_answer_tokens: of the text.
        is_interrupted: True if Ctrl-C ended the training; the head is the best until then.
        run: losses and evaluations of the training.
    """

    folder: Path
    digest: str
    acceptance: Acceptance
    num_answer_tokens: int
    is_interrupted: bool
    run: RunOutcome
