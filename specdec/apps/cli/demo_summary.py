"""The end of ``specdec demo``: the table, the verdict and how it was measured."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from specdec.apps.side_by_side.agreement import Agreement
    from specdec.apps.side_by_side.verdict import Measured


def conclude(console: Console, measured: "Measured", name: str) -> None:
    """Print the table, the verdict, and how it was measured.

    Args:
        name: the model, as the command line names it.
    """
    from specdec.apps.side_by_side.load_by_others import TOLERATED_LOAD, load_by_others
    from specdec.apps.side_by_side.verdict import times, verdict

    console.print()
    console.print(_table(measured))
    console.print()
    load = load_by_others()
    is_busy = load > TOLERATED_LOAD
    say_line(console, verdict(measured, is_busy), "bold")
    by_kind = ", ".join(f"{kind} {times(ratio)}" for kind, ratio in measured.by_kind.items())
    say_line(console, f"By question: {by_kind} times. Drafts gain most where an answer repeats the prompt or itself.")
    for line in _differences(measured):
        say_line(console, line, "yellow")
    if is_busy:
        line = f"Other programs used the processor as well (a load of {load:.1f}), which slows contenders unequally:"
        say_line(console, f"{line} run it again on a quiet machine before you rely on these figures.", "yellow")
    say_line(
        console,
        f"Each answered once, alone, after a warm-up; seconds include prefill; specdec with and without drafts in "
        f"{measured.numerics} numerics. On your own prompts, repeated and with confidence intervals:",
        "dim",
    )
    say_line(console, f"  specdec compare auto --model {name} --prompts FILE", "dim")


def is_live(console: Console) -> bool:
    """Return True for a terminal that a picture can be redrawn on."""
    return console.is_terminal and not console.is_dumb_terminal


def say_line(console: Console, line: str, style: str = "") -> None:
    """Print a paragraph: wrapped at words on a terminal, one line elsewhere."""
    console.print(Text(line, style=style), soft_wrap=not is_live(console))


def _table(measured: "Measured") -> Table:
    from specdec.apps.side_by_side.verdict import speed, times, tokens_per_step

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("tokens/s", "times", "tokens/pass", "same text"):
        table.add_column(heading, justify="right", no_wrap=True)
    base = speed(measured.transformers)
    rows = (
        ("transformers", measured.transformers, None),
        ("specdec, no drafts", measured.without_drafts, measured.agreements_without_drafts),
        ("specdec", measured.specdec, measured.agreements),
    )
    for name, answers, agreements in rows:
        rate = speed(answers)
        ratio = "1" if agreements is None else times(rate / base)
        same = "–" if agreements is None else _same(agreements)
        style = "bold" if name == "specdec" else ""
        table.add_row(name, f"{rate:.1f}", ratio, f"{tokens_per_step(answers):.2f}", same, style=style)
    return table


def _same(agreements: "tuple[Agreement, ...]") -> str:
    found = [each.verdict for each in agreements]
    if "defect" in found:
        return "NO"
    num_ties = found.count("numeric tie")
    return f"{num_ties} tie{'s' if num_ties > 1 else ''}" if num_ties else "yes"


def _differences(measured: "Measured") -> Iterator[str]:
    """A line for each text that isn't transformers'."""
    for name, agreements in (
        ("specdec", measured.agreements),
        ("specdec without drafts", measured.agreements_without_drafts),
    ):
        for kind, found in zip(measured.kinds, agreements, strict=True):
            if found.position is not None:
                what = "a numeric tie" if found.verdict == "numeric tie" else "A DEFECT, please report it"
                yield f"{name}, {kind}: differs from token {found.position + 1} on, {what}: {found.reason}."
