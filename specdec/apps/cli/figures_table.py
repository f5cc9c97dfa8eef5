"""A table of names and figures that stays readable with long names and in narrow terminals."""

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

_GAP = 2
_INDENT = 2
_PIECE = re.compile(r"[^,+:/ ]*[,+:/ ]?")  # a name may be broken after a separator


class FiguresTable:
    """Rows of a name and right-aligned figures, to print with rich.

    Names and figures share a line if both fit. Otherwise each name has a line above its figures; if the figures alone
    are too wide, each figure has its own line.
    """

    def __init__(self, first: str, *headings: str) -> None:
        self._first, self._headings = first, headings
        self.caption = ""
        self.rows: list[tuple[str, tuple[Text, ...]]] = []

    def add_row(self, name: str, *figures: str | Text) -> None:
        self.rows.append((name, tuple(Text(cell) if isinstance(cell, str) else cell for cell in figures)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        headings = tuple(map(Text, self._headings))
        lines = [headings, *(figures for _, figures in self.rows)]
        widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
        room = options.max_width - sum(_GAP + width for width in widths)
        longest = max(map(cell_len, [self._first, *(name for name, _ in self.rows)]))
        if longest <= room:
            for name, figures in [(self._first, headings), *self.rows]:
                yield _line(name.ljust(longest + len(name) - cell_len(name)), figures, widths)
        elif room >= _INDENT - _GAP:
            for name, figures in [(self._first, headings), *self.rows]:
                yield from _folded(name, options.max_width)
                yield _line("", figures, widths)
        else:
            for name, figures in self.rows:
                yield from _folded(name, options.max_width)
                yield from _stacked(headings, figures)
        if self.caption:
            yield Text(self.caption, style="dim italic")


def _stacked(headings: Sequence[Text], figures: Sequence[Text]) -> Iterator[Text]:
    """A line for each figure."""
    width = max(heading.cell_len for heading in headings)
    for heading, cell in zip(headings, figures, strict=True):
        yield Text.assemble(" " * _INDENT, heading, " " * (width - heading.cell_len + _GAP), cell, overflow="fold")


def _line(name: str, figures: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(name)
    for cell, width in zip(figures, widths, strict=True):
        line.append(" " * (_GAP + width - cell.cell_len))
        line.append_text(cell)
    line.no_wrap, line.overflow = True, "fold"
    return line


def _folded(name: str, width: int) -> Iterator[Text]:
    for line in folded(name, width):
        yield Text(line, overflow="fold")


def folded(name: str, width: int) -> list[str]:
    """Break a name after separators into lines of at most ``width`` cells; a longer piece is cut."""
    lines = [""]
    for piece in _PIECE.findall(name):
        for part in (piece[start : start + width] for start in range(0, len(piece), width)):
            if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return lines
