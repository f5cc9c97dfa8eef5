"""Strategies compared: interleaved runs, paired statistics, identity of texts, reports and tuning."""

from specdec.comparison.prompts import EvaluationPrompt, demo_prompts, load_prompts
from specdec.comparison.results import Comparison, Difference, Row
from specdec.comparison.session import Session, compare
from specdec.comparison.statistics import Ratio

__all__ = [
    "Comparison",
    "Difference",
    "EvaluationPrompt",
    "Ratio",
    "Row",
    "Session",
    "compare",
    "demo_prompts",
    "load_prompts",
]
