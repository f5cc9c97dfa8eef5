"""Compare strategies: interleaved runs, paired statistics, identity of texts, reports and tuning."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.apps.comparison.differences import Difference as Difference
    from specdec.apps.comparison.prompts import EvaluationPrompt as EvaluationPrompt
    from specdec.apps.comparison.prompts import demo_prompts as demo_prompts
    from specdec.apps.comparison.prompts import load_prompts as load_prompts
    from specdec.apps.comparison.results import Comparison as Comparison
    from specdec.apps.comparison.rows import Row as Row
    from specdec.apps.comparison.session import ComparisonSession as ComparisonSession
    from specdec.apps.comparison.session import compare as compare
    from specdec.apps.comparison.statistics import Ratio as Ratio
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
