"""Tables of comparisons for the terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from specdec.apps.cli.figures_table import FiguresTable, folded

if TYPE_CHECKING:
    from specdec.apps.comparison import Comparison, Row
    from specdec.apps.comparison.runs import ComparisonPlan
    from specdec.apps.comparison.spec_bench import SpecBench

_DEFECT, _TIE = "bold red", "yellow"
_WHOLE = 10  # tokens per second from which decimals are left out


def speed_table(comparison: "Comparison") -> FiguresTable:
    """Return the table of speed, acceptance, and whether texts equal plain decoding's in the same numerics."""
    table = FiguresTable("strategy", "tokens/s", "tokens/step", "times plain [95 %]", "same text")
    for row in comparison.rows:
        is_plain = row.strategy == comparison.plan.baseline
        table.add_row(
            row.strategy,
            f"{row.tokens_per_second:.{0 if row.tokens_per_second >= _WHOLE else 1}f}",
            f"{row.tokens_per_step:.2f}",
            "1" if is_plain else str(row.speed_up),
            _identity(row, comparison.plan),
        )
    return table


def step_table(comparison: "Comparison") -> FiguresTable:
    """Return the table of a step's costs: time by phase, nodes, and cache size."""
    table = FiguresTable("ms per step", *comparison.rows[0].seconds, "sum", "nodes", "cache")
    for row in comparison.rows:
        seconds = [*row.seconds.values(), sum(row.seconds.values())]
        cache = f"{row.cache_bytes / 2**20:.1f}M"
        table.add_row(row.strategy, *(f"{1000 * value:.2f}" for value in seconds), f"{row.nodes_per_step:.1f}", cache)
    return table


def category_tables(comparison: "Comparison", width: int) -> Iterator[Table | FiguresTable]:
    """The speed-ups by category if there are several, and Spec-Bench's table if prompts have its categories."""
    if len(comparison.categories) > 1:
        yield _category_table(comparison, width)
    if (table := comparison.spec_bench()) is not None:
        yield _spec_bench_table(table, width)


def _category_table(comparison: "Comparison", width: int) -> Table | FiguresTable:
    """Spec-Bench's layout: speed-up by category, mean accepted tokens and speed-up overall."""
    rows = [row for row in comparison.rows if row.strategy != comparison.plan.baseline]
    headings = [*comparison.categories, "mean accepted", "overall [95 %]"]
    figures = [
        [
            *(f"{comparison.category_speed_up(row.strategy, name):.2f}" for name in comparison.categories),
            f"{row.tokens_per_step:.2f}",
            str(row.speed_up),
        ]
        for row in rows
    ]
    return _upright_or_turned([row.strategy for row in rows], headings, figures, width)


def _spec_bench_table(found: "SpecBench", width: int) -> Table | FiguresTable:
    """Spec-Bench's own table, mean accepted tokens and speed-up by task, with how they are taken below it."""
    from specdec.apps.comparison.spec_bench import NOTE

    figures = [[f"{cell.tokens_per_step:.2f} {cell.speed_up:.2f}×" for cell in cells] for cells in found.rows.values()]
    table = _upright_or_turned(list(found.rows), found.columns, figures, width)
    table.caption = NOTE
    return table


def _upright_or_turned(
    names: Sequence[str], headings: Sequence[str], figures: Sequence[Sequence[str]], width: int
) -> Table | FiguresTable:
    """Return a table with strategies as rows, or as columns if it would be wider than the terminal."""
    room = width - sum(2 + max(14, len(heading)) for heading in headings)
    if room >= min(16, max(map(len, names), default=0)):
        table = FiguresTable("strategy", *headings)
        for name, line in zip(names, figures, strict=True):
            table.add_row(name, *line)
        return table
    turned = Table(box=None, pad_edge=False, caption_justify="left")
    turned.add_column("category", no_wrap=True)
    share = (width - max(map(len, headings))) // max(1, len(names)) - 2
    for name in names:
        turned.add_column("\n".join(folded(name, max(share, 8))), justify="right", overflow="fold")
    for heading, cells in zip(headings, zip(*figures, strict=True), strict=True):
        turned.add_row(heading, *cells)
    return turned


def identity_lines(comparison: "Comparison", tokenizer: Any) -> Iterator[Text]:
    """Return lines on whether texts are the same: possible defects in red, numeric ties in yellow."""
    from specdec.apps.comparison.sentences import differences, identity

    if said := identity(comparison):
        yield Text(said, style=_DEFECT if comparison.defects else _TIE if comparison.differences else "")
    for found, line in differences(comparison, tokenizer.decode if tokenizer is not None else None):
        yield Text(line, style="" if found is None else _TIE if found.verdict == "numeric tie" else _DEFECT)


def _identity(row: "Row", plan: "ComparisonPlan") -> Text:
    if row.strategy in plan.plain:
        return Text("–")
    if row.num_different is None:
        return Text("in distribution" if plan.promises[row.strategy] == "distribution" else "LOSSY")
    ties = f"{row.num_ties} tie{'s' if row.num_ties > 1 else ''}"
    if row.num_defects:
        also = f", {ties}" if row.num_ties else ""
        return Text(f"NO: {row.num_defects} of {row.num_texts}{also}", style=_DEFECT)
    return Text(f"{ties} of {row.num_texts}", style=_TIE) if row.num_ties else Text("yes")
