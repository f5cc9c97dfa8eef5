"""Progress of a training run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specdec.apps.cli.options import refusing

if TYPE_CHECKING:
    from specdec.heads.training import Progress

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_DRAWINGS = 0.5


@contextmanager
def _shown() -> "Iterator[Callable[[Progress], None]]":
    """Show the last report: on a terminal in one line, elsewhere a line from time to time and for a better head."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(Text(""), console=console, transient=True, auto_refresh=False, redirect_stdout=True) as live:
        drawn = -_SECONDS_BETWEEN_DRAWINGS

        def show(progress: "Progress") -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= _SECONDS_BETWEEN_DRAWINGS:
                drawn = time.monotonic()
                line = Text(progress.line(), style="dim", no_wrap=True, overflow="ellipsis")
                live.update(line, refresh=True)

        yield show


@contextmanager
def training_progress(folder: Path | None, missing: str, is_resumed: bool) -> "Iterator[Callable[[Progress], None]]":
    """Show a run's progress; if Ctrl-C ends the block, which is before ``missing``, print how to go on.

    Args:
        folder: the run's; None is the cache folder.
        is_resumed: the folder has text of an earlier run.
    """
    has_text = is_resumed
    try:
        with refusing(), _shown() as show:

            def report(progress: "Progress") -> None:
                nonlocal has_text
                has_text = has_text or progress.stage == "training" or progress.num_answer_tokens > 0
                show(progress)

            yield report
    except KeyboardInterrupt:
        kept = (
            f"the text so far is kept in {folder or 'the cache folder'}: the same command with --resume goes on with it"
        )
        state = kept if has_text else "nothing was written yet: give the same command again"
        message = f"interrupted before {missing}; {state}"
        Console(stderr=True, highlight=False, markup=False).print(message, soft_wrap=True)
        raise


class _Lines:
    """Progress for a log."""

    def __init__(self, console: Console) -> None:
        self._console, self._said, self._best, self._stage = console, time.monotonic(), 0.0, ""

    def __call__(self, progress: "Progress") -> None:
        is_news = progress.tokens_per_step > self._best or progress.stage != self._stage
        if is_news or time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said, self._best, self._stage = time.monotonic(), progress.tokens_per_step, progress.stage
            self._console.print(progress.line(), style="dim", highlight=False, markup=False, soft_wrap=True)
