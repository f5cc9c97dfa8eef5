"""Progress messages on standard error."""

import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

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

from specdec.errors import plural

if TYPE_CHECKING:
    from specdec.apps.comparison import Comparison, ComparisonSession

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def status(doing: str, is_logged: bool = False) -> Iterator[Callable[[], None]]:
    """Show a line on standard error, if that is a terminal, and remove it at the end.

    Yields a function that removes it earlier.

    Args:
        is_logged: print the line if standard error isn't a terminal; for a command that runs for minutes.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        if is_logged:
            console.print(doing, style="dim", highlight=False, markup=False, soft_wrap=True)
        yield lambda: None
        return
    line = Text(f"{doing}…", style="dim", no_wrap=True, overflow="ellipsis")
    # Drawn once, because the block may be timed. Standard output isn't redirected, because the text may go there.
    with Live(line, console=console, transient=True, auto_refresh=False, redirect_stdout=False) as live:
        yield live.stop


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Yield a function that announces a stage: on a terminal with a clock, elsewhere as a line.

    Use it for work that isn't timed, as the clock is drawn continuously. Progress bars of libraries are dropped
    meanwhile.
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        with redirect_stderr(_WithoutBars(sys.stderr)):
            yield lambda stage: console.print(stage, style="dim", highlight=False, markup=False, soft_wrap=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # The progress prints what else is written to standard error above its line.
    with Progress(*columns, console=console, transient=True) as line, redirect_stderr(_WithoutBars(sys.stderr)):
        task = line.add_task("")
        yield lambda stage: line.update(task, description=stage)


class _WithoutBars(io.TextIOBase):
    """Writes to another stream, except progress bars, which begin with a carriage return, and the line end of one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_after_bar = stream, False

    def write(self, text: str) -> int:
        is_bar = text.startswith("\r")
        if not is_bar and not (self._is_after_bar and text == "\n"):
            self._stream.write(text)
        self._is_after_bar = is_bar
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def measured(session: "ComparisonSession", run_file: Path | None) -> "Comparison":
    """Measure, with a progress bar on standard error that is drawn only between the timed runs.

    If that isn't a terminal, a line is printed from time to time.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs,"), TimeRemainingColumn(), TextColumn("left"))
    console = Console(stderr=True)
    if not console.is_terminal:
        total, log = session.plan.num_runs, _Log(console)
        prompts, rows = plural(len(session.plan.prompts), "prompt"), plural(len(session.generators), "row")
        text = f"{total} runs: {prompts}, {rows}, {plural(session.plan.repeats, 'repeat')}"
        console.print(text, style="dim", highlight=False)
        return session.run(run_file, on_run=lambda _: log.say(f"{len(session.runs)} of {total} runs are done"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=session.plan.num_runs)
        return session.run(run_file, on_run=lambda _: bar.update(task, completed=len(session.runs), refresh=True))


@contextmanager
def counted(total: int, of_what: str) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """Show progress over ``total`` items; yield a function to count an item, and one to describe the last stage.

    If standard error isn't a terminal, a line is printed from time to time.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        log, done = _Log(console), 0

        def say(doing: str) -> None:
            log.say(f"{done} of {total} {of_what}; {doing}")

        def advance() -> None:
            nonlocal done
            done += 1
            say("go on")

        yield advance, say
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(of_what, total=total)
        yield (lambda: bar.advance(task)), (lambda doing: bar.update(task, description=f"{of_what}; {doing}…"))


@contextmanager
def part_of(of_what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress by the numbers of finished and of all items; outside of terminals, a line from time to time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        log = _Log(console)
        yield lambda done, total: log.say(f"{done} of {total} {of_what}; go on")
        return
    with Progress(
        BarColumn(), MofNCompleteColumn(), TextColumn(of_what), TimeRemainingColumn(), console=console
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def settings_tried() -> Iterator[Callable[[str], None]]:
    """Yield a function to call after each setting that was tried; outside of terminals, a line from time to time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        log, count = _Log(console), itertools.count(1)
        yield lambda last: log.say(f"{plural(next(count), 'setting')} tried, last {last}; go on")
        return
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.completed} settings, last {task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda last: bar.update(task, advance=1, description=last)


class _Log:
    """Lines on a console that is no terminal, at most one in 30 seconds."""

    def __init__(self, console: Console) -> None:
        self._console, self._said = console, time.monotonic()

    def say(self, text: str) -> None:
        if time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._console.print(text, style="dim", highlight=False)
