"""Compare strategies: interleaved runs, paired statistics, identity of texts, reports and tuning."""

from specdec.comparison.differences import Difference
from specdec.comparison.prompts import EvaluationPrompt, demo_prompts, load_prompts
from specdec.comparison.results import Comparison
from specdec.comparison.rows import Row
from specdec.comparison.session import ComparisonSession, compare
from specdec.comparison.statistics import Ratio

__all__ = [
    "Comparison",
    "ComparisonSession",
    "Difference",
    "EvaluationPrompt",
    "Ratio",
    "Row",
    "compare",
    "demo_prompts",
    "load_prompts",
]
