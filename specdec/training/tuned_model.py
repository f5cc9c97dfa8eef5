"""The result of consistency training, and what is measured of it."""

from dataclasses import dataclass, field
from pathlib import Path

from specdec.errors import ModelError


@dataclass(frozen=True, slots=True)
class JacobiEvaluation:
    """A model on held-out text.

    Attributes:
        tokens_per_step: of Jacobi decoding with n guesses.
        loss: on the original model's text, in nats per token.
        num_tokens: decoded for ``tokens_per_step``.
    """

    tokens_per_step: float
    loss: float
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.tokens_per_step:.2f} at a loss of {self.loss:.3f}"


@dataclass
class ConsistencyRun:
    """The outcome of a consistency training.

    Attributes:
        num_updates: updates so far.
        num_answer_tokens: answer tokens trained on, repetitions included.
        seconds: spent, evaluations included.
        losses: (update, L_GC, L_AR) now and then.
        evaluations: (update, evaluation); the first is of the original model.
        best: the update after which the model that was kept was evaluated; 0 without one.
        previous: of the model of an earlier run in the same folder, if that was better than the original.
    """

    num_updates: int = 0
    num_answer_tokens: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float, float]] = field(default_factory=list)
    evaluations: list[tuple[int, JacobiEvaluation]] = field(default_factory=list)
    best: int = 0
    previous: JacobiEvaluation | None = None

    @property
    def closest(self) -> JacobiEvaluation:
        """The evaluation closest to a better model than the original, if no loss was low enough.

        It has the least loss of those with more tokens per step than the original; without any, most tokens per step.
        """
        (_, before), *others = self.evaluations
        faster = [found for _, found in others if found.tokens_per_step > before.tokens_per_step]
        if faster:
            return min(faster, key=lambda found: found.loss)
        return max((found for _, found in others), key=lambda found: found.tokens_per_step)


class NoBetterModelError(ModelError):
    """Consistency training found no model that is better than the original.

    Attributes:
        run: losses and evaluations of the training.
    """

    def __init__(self, message: str, run: ConsistencyRun) -> None:
        super().__init__(message)
        self.run = run


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The result of ``train_consistency``.

    Attributes:
        folder: of the new model.
        before: the original model's evaluation.
        after: the new model's.
        num_answer_tokens: of the text.
        is_interrupted: True if Ctrl-C ended the training; the model is the best until then.
        run: losses and evaluations of the training.
    """

    folder: Path
    before: JacobiEvaluation
    after: JacobiEvaluation
    num_answer_tokens: int
    is_interrupted: bool
    run: ConsistencyRun
