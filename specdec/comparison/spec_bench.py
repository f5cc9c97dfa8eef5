"""Spec-Bench's own table of a comparison: a row per strategy, a column per task, of prompts with its categories.

Tasks and table are those of Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference: A Comprehensive
Survey of Speculative Decoding", arXiv 2401.07851.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.comparison.results import Comparison

OVERALL = "overall"
TASKS = {
    "multi-turn conversation": (
        "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
    ),
    "translation": ("translation",),
    "summarization": ("summarization",),
    "question answering": ("qa",),
    "mathematical reasoning": ("math_reasoning",),
    "retrieval-augmented generation": ("rag",),
}  # fmt: skip
NOTE = (
    "Mean accepted tokens: all tokens over all steps. Speed-up: all tokens over all seconds, medians of repeats, over "
    "plain decoding's; Spec-Bench's script averages the prompts' speeds instead (ratio_of_means in the JSON). Overall: "
    "the prompts of all columns together. Of several turns the first is decoded."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A strategy's figures on a task's prompts.

    ``tokens_per_step`` is the mean over steps of accepted tokens, the model's own included. ``speed_up`` is the ratio
    of all tokens over all seconds to plain decoding's; ``ratio_of_means`` that of the prompts' mean tokens per second,
    as Spec-Bench's ``evaluation/speed.py`` takes it.
    """

    tokens_per_step: float
    speed_up: float
    ratio_of_means: float


@dataclass(frozen=True, slots=True)
class SpecBench:
    """The table: its columns, ``OVERALL`` last, and each strategy's cells in their order."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]

    def to_json(self) -> dict[str, Any]:
        """Each strategy's figures by column."""
        return {
            name: {column: asdict(cell) for column, cell in zip(self.columns, cells, strict=True)}
            for name, cells in self.rows.items()
        }


def spec_bench(comparison: "Comparison") -> SpecBench | None:
    """The table, strategies in the plan's order; None where no prompt has a category of Spec-Bench's."""
    present = set(comparison.categories)
    groups = {task: own for task, categories in TASKS.items() if (own := tuple(c for c in categories if c in present))}
    if not groups:
        return None
    groups[OVERALL] = tuple(category for own in groups.values() for category in own)
    return SpecBench(
        tuple(groups),
        {name: tuple(_cell(comparison, name, own) for own in groups.values()) for name in comparison.plan.strategies},
    )


def _cell(comparison: "Comparison", strategy: str, categories: tuple[str, ...]) -> Cell:
    own, plain = (comparison.speeds(name, categories) for name in (strategy, comparison.plan.baseline))
    return Cell(
        comparison.tokens_per_step(strategy, categories),
        comparison.category_speed_up(strategy, categories),
        float((own[0] / own[1]).mean() / (plain[0] / plain[1]).mean()),
    )
