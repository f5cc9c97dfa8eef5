"""The result of a training."""

from dataclasses import dataclass
from pathlib import Path

from specdec.training.acceptance import Acceptance
from specdec.training.run import Run


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The result of ``train_head``.

    Attributes:
        folder: the head's folder, for ``eagle3:head=FOLDER`` or the ``strategy`` of its kind.
        digest: of the model; "" if its weights can't be read.
        acceptance: of the best head, on held-out text.
        num_answer_tokens: of the text.
        is_interrupted: True if Ctrl-C ended the training; the head is the best until then.
        run: losses and evaluations of the training.
        strategy: the name of the strategy that drafts with it.
    """

    folder: Path
    digest: str
    acceptance: Acceptance
    num_answer_tokens: int
    is_interrupted: bool
    run: Run
    strategy: str = "eagle3"
