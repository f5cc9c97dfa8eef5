"""A comparison in a few lines of a terminal."""

from typing import TYPE_CHECKING

from specdec.errors import plural

if TYPE_CHECKING:
    from specdec.comparison.results import Comparison

_NAME = 30  # characters of a strategy's name


def summary(comparison: "Comparison") -> str:
    """The speed of each strategy, the fastest first, and whether the texts are plain decoding's; 80 columns."""
    plan = comparison.plan
    left_out = "" if comparison.is_complete else ", incomplete"
    lines = [f"Comparison of {plural(len(comparison.prompts), 'prompt')}, {plural(plan.repeats, 'repeat')}{left_out}"]
    lines.append(f"  {'':{_NAME}}  tokens/s  tokens/step  speed over plain")
    for row in comparison.ranking:
        name = row.strategy if len(row.strategy) <= _NAME else f"{row.strategy[: _NAME - 1]}…"
        figures = f"{row.tokens_per_second:8.1f}  {row.tokens_per_step:11.2f}  {row.speed_up}"
        lines.append(f"  {name:{_NAME}}  {figures}")
    different, ties = len(comparison.defects), len(comparison.ties)
    lines.append(f"  texts that differ from plain decoding's: {different}, and {ties} at numeric ties")
    return "\n".join(lines)
