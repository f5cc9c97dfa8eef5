"""Shows two answers to one question live in two columns, or as plain lines if there is no terminal."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specdec.apps.cli.answers import COLOURS

if TYPE_CHECKING:
    from specdec.apps.side_by_side.contenders import TimedAnswer

_REFRESH = 0.05  # seconds between two frames
_LEAST_LINES = 3  # of text in a panel
_BELOW = 4  # lines below the text: borders, the last line, and the cursor's
_STACKED = 50  # columns of a terminal that is too narrow for two


class Column:
    """One contender's answer so far."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name, self._tokenizer = name, tokenizer
        self._ids: list[int] = []
        self._text, self._num_passes = Text(), 0
        self._seconds = 0.0
        self._has_begun, self.is_done = False, False

    def add(self, ids: Sequence[int], seconds: float) -> None:
        """Add the tokens of a pass; if there are several, they share a colour."""
        self._ids += ids
        self._seconds = seconds
        whole = printable(self._tokenizer.decode(self._ids, skip_special_tokens=True))
        if whole.endswith("\N{REPLACEMENT CHARACTER}"):  # a character that the next tokens complete
            return
        style = COLOURS[self._num_passes % len(COLOURS)] if len(ids) > 1 else ""
        self._num_passes += len(ids) > 1
        self._text.append(whole[len(self._text) :], style=style)

    def begin(self) -> None:
        """Mark the column as the current one."""
        self._has_begun = True

    def finish(self, answer: "TimedAnswer") -> None:
        """Set the whole answer."""
        self._ids, self._seconds, self.is_done = list(answer.token_ids), answer.seconds, True
        whole = printable(self._tokenizer.decode(self._ids, skip_special_tokens=True))
        if whole != self._text.plain:  # a tokenizer may decode a text differently from its parts
            self._text = Text(whole)

    @property
    def text(self) -> Text:
        """The text, without blank lines at its ends."""
        lines = self._text.split("\n", allow_blank=True)
        kept = [place for place, line in enumerate(lines) if line.plain.strip()]
        return Text("\n").join(lines[kept[0] : kept[-1] + 1]) if kept else Text()

    def figures(self) -> str:
        """Tokens and tokens per second so far."""
        if not self._ids:
            return "reads the prompt" if self._has_begun else "waits its turn"
        return figures(len(self._ids), self._seconds)


class Columns:
    """The columns of one question on a terminal, and a line below them."""

    def __init__(self, console: Console, columns: Sequence[Column]) -> None:
        self._console, self._columns = console, columns
        self._below = ""
        self._drawn = 0.0
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw within the block; both texts are shown in full at its end."""
        with Live(self._picture(), console=self._console, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None
        self._console.print(self._picture(in_full=True))

    def add(self, column: Column, ids: Sequence[int], seconds: float) -> None:
        """Add tokens, and draw them unless the last frame is too recent."""
        column.add(ids, seconds)
        if time.perf_counter() - self._drawn > _REFRESH:
            self.draw()

    def say(self, below: str) -> None:
        """Set the line below the columns."""
        self._below = below
        self.draw()

    def draw(self) -> None:
        """Draw now."""
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        self._drawn = time.perf_counter()

    def _picture(self, in_full: bool = False) -> RenderableType:
        num_across = 1 if self._console.width < _STACKED else len(self._columns)
        width = self._console.width // num_across - 4
        texts = [column.text.wrap(self._console, width, tab_size=4) for column in self._columns]
        room = max(1, (self._console.height - _BELOW) * num_across // len(self._columns) - 2)
        most = max(_LEAST_LINES, *map(len, texts))
        num_lines = most if in_full else min(most, room)
        grid = Table.grid(expand=True)
        for _ in range(num_across):
            grid.add_column(ratio=1)
        panels = [
            self._panel(column, list(lines)[-num_lines:], num_lines)
            for column, lines in zip(self._columns, texts, strict=True)
        ]
        for start in range(0, len(panels), num_across):
            grid.add_row(*panels[start : start + num_across])
        return Group(grid, Text(self._below, style="dim", no_wrap=True, overflow="ellipsis"))

    def _panel(self, column: Column, lines: Sequence[Text], num_lines: int) -> Panel:
        return Panel(
            Text("\n").join(lines),
            title=Text(column.name, style="bold"),
            title_align="left",
            subtitle=Text(column.figures()),
            subtitle_align="right",
            border_style="green" if column.is_done else "dim",
            height=num_lines + 2,
        )


def figures(num_tokens: int, seconds: float) -> str:
    """Return tokens and tokens per second: "89 tokens, 15.6/s"."""
    return f"{num_tokens} token{'s' if num_tokens != 1 else ''}, {num_tokens / seconds:.1f}/s"


def printable(text: str) -> str:
    """Return a text without control characters."""
    return "".join(character if character.isprintable() or character in "\n\t" else " " for character in text)
