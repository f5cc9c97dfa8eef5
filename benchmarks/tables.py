"""Summaries as Markdown tables."""

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.summary import Row
from specdec.costs import Costs
from specdec.record import PHASES


def speed_table(rows: Sequence[Row], baseline: str, other: str | None = None) -> str:
    """Speed, acceptance, memory and texts; with a column over another contender if there is one."""
    heading = [
        "contender",
        "tokens/s",
        f"times {baseline}: by repeat",
        "by prompt",
        "slowest prompt",
        *([f"times {other}: by prompt"] if other else []),
        "tokens/step",
        "ms/step",
        "peak MiB over the model",
        "peak MiB",
        "texts that differ",
    ]
    return table(
        heading,
        (
            [
                f"`{row.contender}`",
                f"{row.tokens_per_second:.1f}",
                _or_dash(row.by_repeat, ""),
                _or_dash(row.by_prompt, ""),
                _or_dash(row.by_prompt and row.by_prompt.least, ".2f"),
                *([_or_dash(row.over_other, "")] if other else []),
                _or_dash(row.tokens_per_step, ".2f"),
                _or_dash(row.milliseconds_per_step, ".2f"),
                _or_dash(None if row.peak_bytes is None else row.peak_bytes / 2**20, ".0f"),
                _or_dash(None if row.total_bytes is None else row.total_bytes / 2**20, ".0f"),
                _or_dash(row.num_different, "d"),
            ]
            for row in rows
        ),
    )


def category_table(rows: Sequence[Row], categories: Sequence[str]) -> str:
    """Speed over the baseline by category; empty if there is one category only, or no baseline."""
    counts = Counter(categories)
    known = [(row.contender, row.by_category) for row in rows if row.by_category is not None]
    if len(counts) < 2 or not known:
        return ""
    lines = ([f"`{name}`", *(f"{ratios[category]:.2f}" for category in counts)] for name, ratios in known)
    return table(["contender", *(f"{category} ({count})" for category, count in counts.items())], lines)


def phase_table(rows: Sequence[Row]) -> str:
    """Milliseconds per step by phase, for contenders that report phases; empty if none does."""
    phased = [(row.contender, row.phases) for row in rows if row.phases is not None]
    if not phased:
        return ""
    lines = ([f"`{name}`", *(f"{phases.get(phase, 0.0):.3f}" for phase in PHASES)] for name, phases in phased)
    return table(["ms per step", *PHASES], lines)


def cost_table(costs: Costs) -> str:
    """c(T): what a pass over T nodes costs."""
    lines = [
        ["ms", *(f"{1e3 * seconds:.2f}" for seconds in costs.seconds)],
        ["c(T)", *(f"{value:.2f}" for value in costs.relative)],
    ]
    return table(["nodes T", *map(str, costs.sizes)], lines)


def table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _or_dash(value: object | None, form: str) -> str:
    return "–" if value is None else format(value, form)
