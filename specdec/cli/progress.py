"""Progress on standard error while something takes its time."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from specdec.comparison import Comparison, ComparisonSession

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def status(doing: str) -> Iterator[Callable[[], None]]:
    """Say on standard error what takes its time, where that is a terminal; the line vanishes at the end.

    What is given back makes it vanish earlier.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    line = Text(f"{doing}…", style="dim", no_wrap=True, overflow="ellipsis")
    # Drawn once: what goes on meanwhile may be timed. Standard output stays what it is: it may take the text.
    with Live(line, console=console, transient=True, auto_refresh=False, redirect_stdout=False) as live:
        yield live.stop


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Yield a function that announces a stage: on a terminal with a clock, elsewhere as a line.

    Use it for work that isn't timed, as the clock is drawn continuously. Other output to standard error, such as
    progress bars of libraries, is dropped meanwhile.
    """
    console = Console(file=sys.stderr)
    with redirect_stderr(io.StringIO()):
        if not console.is_terminal:
            yield lambda stage: console.print(stage, style="dim", highlight=False, markup=False, soft_wrap=True)
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, redirect_stderr=False) as line:
            task = line.add_task("")
            yield lambda stage: line.update(task, description=stage)


def measured(session: "ComparisonSession", run_file: Path | None) -> "Comparison":
    """Measure, with a progress bar on standard error, drawn between runs only: they are timed.

    Where that is no terminal, a line now and then.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs,"), TimeRemainingColumn(), TextColumn("left"))
    console = Console(stderr=True)
    if not console.is_terminal:
        return session.run(run_file, on_run=_Lines(session, console))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=session.num_runs)

        def show(run: Any) -> None:
            bar.update(task, completed=len(session.runs), refresh=True)

        return session.run(run_file, on_run=show)


@contextmanager
def counted(total: int, of_what: str) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """Show progress over ``total`` items: yields a function to count one, and one to describe the end.

    Where standard error is no terminal, a line now and then.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _Counted(total, of_what, console)
        yield lines.advance, lines.say
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(of_what, total=total)
        yield (lambda: bar.advance(task)), (lambda doing: bar.update(task, description=f"{of_what}; {doing}…"))


@contextmanager
def part_of(of_what: str) -> Iterator[Callable[[int, int], None]]:
    """Progress as how many things are done and how many there are; a line now and then where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _Counted(0, of_what, console)
        yield lines.is_at
        return
    with Progress(
        BarColumn(), MofNCompleteColumn(), TextColumn(of_what), TimeRemainingColumn(), console=console
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Counted:
    """Progress for a log: now and then how many things are over, and what is done next if it takes its time."""

    def __init__(self, total: int, of_what: str, console: Console) -> None:
        self._total, self._of_what, self._console = total, of_what, console
        self._done, self._said = 0, time.monotonic()

    def advance(self) -> None:
        self._done += 1
        self.say("go on")

    def is_at(self, done: int, total: int) -> None:
        """Note how many things are done, and how many there are."""
        self._done, self._total = done, total
        self.say("go on")

    def say(self, doing: str) -> None:
        if time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            text = f"{self._done} of {self._total} {self._of_what}; {doing}"
            self._console.print(text, style="dim", highlight=False)


class _Lines:
    """Progress for a log: how many runs there are, and now and then how many are over."""

    def __init__(self, session: "ComparisonSession", console: Console) -> None:
        self._session, self._console = session, console
        self._said = time.monotonic()
        self._say(f"{session.num_runs} runs")

    def __call__(self, run: Any) -> None:
        if time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._say(f"{len(self._session.runs)} of {self._session.num_runs} runs are over")

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False)
