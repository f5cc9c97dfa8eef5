"""Compare strategies: interleaved runs, paired statistics, identity of texts, reports and tuning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec.comparison.prompts import EvaluationPrompt, demo_prompts, load_prompts

if TYPE_CHECKING:
    from specdec.comparison.differences import Difference
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

# Imported at first use, since torch takes a second: a command reads its prompts first.
_HOMES = {
    "Comparison": "results",
    "ComparisonSession": "session",
    "Difference": "differences",
    "Ratio": "statistics",
    "Row": "rows",
    "compare": "session",
}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"specdec.comparison.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
