"""The plan of a consistency training."""

from dataclasses import dataclass
from pathlib import Path

from specdec.training.progress import Plan, TrainingPlan


@dataclass(frozen=True, slots=True)
class ConsistencyPlan(TrainingPlan):
    """The tuning of a copy of a model.

    Attributes:
        block_size: tokens of a block.
        folder: of the new model.
    """

    block_size: int
    folder: Path

    def lines(self, plan: Plan) -> list[str]:
        return [
            f"training: all weights of a copy of the model, for {plan.training_minutes:.3g} minutes; that which Jacobi "
            f"decoding with {self.block_size} guesses decodes in fewest steps on held-out text is kept",
            f"this makes another model, in {self.folder}, which writes other texts; the given model stays as it is",
        ]
