"""Summaries as Markdown tables."""

from collections.abc import Iterable, Sequence

from benchmarks.summary import Row
from specdec.costs import Costs
from specdec.stats import PHASES


def speed_table(rows: Sequence[Row], baseline: str) -> str:
    """Speed, acceptance, memory and texts."""
    heading = [
        "contender",
        "tokens/s",
        f"times {baseline}: by repeat",
        "by prompt",
        "slowest prompt",
        "tokens/step",
        "ms/step",
        "peak MiB over the model",
        "texts that differ",
    ]
    return _table(
        heading,
        (
            [
                f"`{row.contender}`",
                f"{row.tokens_per_second:.1f}",
                _or_dash(row.by_repeat, ""),
                _or_dash(row.by_prompt, ""),
                _or_dash(row.by_prompt and row.by_prompt.least, ".2f"),
                _or_dash(row.tokens_per_step, ".2f"),
                _or_dash(row.milliseconds_per_step, ".2f"),
                _or_dash(None if row.peak_bytes is None else row.peak_bytes / 2**20, ".0f"),
                _or_dash(row.num_different, "d"),
            ]
            for row in rows
        ),
    )


def phase_table(rows: Sequence[Row]) -> str:
    """Milliseconds per step by phase, of the contenders that tell; empty where none does."""
    phased = [(row.contender, row.phases) for row in rows if row.phases is not None]
    if not phased:
        return ""
    lines = ([f"`{name}`", *(f"{phases.get(phase, 0.0):.3f}" for phase in PHASES)] for name, phases in phased)
    return _table(["ms per step", *PHASES], lines)


def cost_table(costs: Costs) -> str:
    """c(T): what a pass over T nodes costs."""
    lines = [
        ["ms", *(f"{1e3 * seconds:.2f}" for seconds in costs.seconds)],
        ["c(T)", *(f"{value:.2f}" for value in costs.relative)],
    ]
    return _table(["nodes T", *map(str, costs.sizes)], lines)


def _table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _or_dash(value: object | None, form: str) -> str:
    return "–" if value is None else format(value, form)
