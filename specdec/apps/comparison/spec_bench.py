"""Spec-Bench's table of a comparison: a row per strategy, a column per task, for prompts with its categories.

Tasks and table are those of Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference: A Comprehensive
Survey of Speculative Decoding", arXiv 2401.07851.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec.apps.comparison.rows import speeds, tokens_per_step
from specdec.apps.comparison.runs import Run
from specdec.apps.comparison.statistics import speed_value

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
class TaskFigures:
    """A strategy's figures on one task's prompts.

    ``tokens_per_step`` is the mean number of accepted tokens per step, the bonus token included. ``speed_up`` divides
    all tokens over all seconds by plain decoding's. ``ratio_of_means`` divides the mean of the prompts' speeds by plain
    decoding's mean, as Spec-Bench's ``evaluation/speed.py`` does.
    """

    tokens_per_step: float
    speed_up: float
    ratio_of_means: float


@dataclass(frozen=True, slots=True)
class SpecBench:
    """The table: its columns, ``OVERALL`` last, and each strategy's cells in that order."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[TaskFigures, ...]]

    def to_json(self) -> dict[str, Any]:
        """Each strategy's figures by column."""
        return {
            name: {column: asdict(cell) for column, cell in zip(self.columns, cells, strict=True)}
            for name, cells in self.rows.items()
        }


def spec_bench(runs: Mapping[str, Sequence[Run]], baseline: str, category_of: Sequence[str]) -> SpecBench | None:
    """The table of each strategy's runs, in their order; None if no prompt has a Spec-Bench category.

    Args:
        runs: by strategy, on the same prompts.
        baseline: the name of plain decoding.
        category_of: by prompt.
    """
    present = {category_of[run.prompt] for run in runs[baseline]}
    groups = {task: own for task, categories in TASKS.items() if (own := present.intersection(categories))}
    if not groups:
        return None
    groups[OVERALL] = set[str]().union(*groups.values())

    def figures(strategy: str, categories: set[str]) -> TaskFigures:
        own, plain = (
            [run for run in runs[name] if category_of[run.prompt] in categories] for name in (strategy, baseline)
        )
        own_speeds, plain_speeds = speeds(own), speeds(plain)
        ratio_of_means = float((own_speeds[0] / own_speeds[1]).mean() / (plain_speeds[0] / plain_speeds[1]).mean())
        return TaskFigures(tokens_per_step(own), speed_value(own_speeds, plain_speeds), ratio_of_means)

    return SpecBench(tuple(groups), {name: tuple(figures(name, own) for own in groups.values()) for name in runs})
