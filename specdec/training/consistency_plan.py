"""The plan of a consistency training."""

from dataclasses import dataclass
from pathlib import Path

from specdec.training.progress import Plan, TrainingPlan, rounded


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
            f"training: all weights of a copy of the model, for {rounded(plan.training_minutes, 3)} minutes; the copy "
            f"with most tokens per step is kept (Jacobi decoding with {self.block_size} guesses, held-out text)",
            f"this makes another model, in {self.folder}, which writes other texts; the given model stays as it is",
        ]
