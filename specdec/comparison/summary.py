"""A comparison in a few lines of a terminal."""

from collections.abc import Sequence

from specdec.comparison.rows import Row
from specdec.errors import shortened

_NAME = 30  # characters of a strategy's name


def summary(heading: str, ranking: Sequence[Row], num_defects: int, num_ties: int) -> str:
    """The speed of each strategy, and how many texts differ from plain decoding; 80 columns."""
    lines = [heading, f"  {'':{_NAME}}  tokens/s  tokens/step  speed over plain"]
    for row in ranking:
        figures = f"{row.tokens_per_second:8.1f}  {row.tokens_per_step:11.2f}  {row.speed_up}"
        lines.append(f"  {shortened(row.strategy, _NAME):{_NAME}}  {figures}")
    lines.append(f"  texts that differ from plain decoding's: {num_defects}, and {num_ties} at numeric ties")
    return "\n".join(lines)
