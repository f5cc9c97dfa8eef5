"""Shows answers while they are decoded: rendered Markdown or coloured tokens in a terminal, plain text in a pipe."""

import re
from typing import TYPE_CHECKING, Protocol

from markdown_it import MarkdownIt
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

if TYPE_CHECKING:
    from specdec.decoding.result import Chunk

_FENCE = re.compile("(`{3,}|~{3,})[^`]*")
COLOURS = "cyan", "magenta", "green", "yellow", "blue"  # of the tokens of multi-token steps, in turn


class AnswerWriter(Protocol):
    """Shows one answer while it is decoded."""

    def add(self, chunk: "Chunk") -> None:
        """Show a step's text."""

    def end(self) -> None:
        """Show the rest, also of a stopped answer."""


class PlainWriter:
    """Writes the exact text, for pipes; rich would expand tabs and drop control characters."""

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def add(self, chunk: "Chunk") -> None:
        self._file.write(chunk.text)
        self._file.flush()

    def end(self) -> None:
        self._file.write("\n")
        self._file.flush()


class ColouredWriter:
    """Writes text in which the tokens of a multi-token step share a colour."""

    def __init__(self, console: Console) -> None:
        self._console, self._num_steps = console, 0

    def add(self, chunk: "Chunk") -> None:
        style = ""
        if len(chunk.token_ids) > 1:
            style, self._num_steps = COLOURS[self._num_steps % len(COLOURS)], self._num_steps + 1
        self._console.print(Text(chunk.text, style=style), end="", soft_wrap=True)
        self._console.file.flush()

    def end(self) -> None:
        self._console.print()


class MarkdownWriter:
    """Renders Markdown block by block; the current block is plain text until it is complete.

    Complete blocks scroll away like other output. Only the current block is redrawn, and a screen that is too small for
    it shows its end.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._unfinished, self._has_blocks = console, "", False
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live.start()

    def add(self, chunk: "Chunk") -> None:
        self._unfinished += chunk.text
        while (end := _end_of_block(self._unfinished)) is not None:
            block, self._unfinished = self._unfinished[:end], self._unfinished[end:].lstrip("\n")
            self._render(block)
        self._live.update(self._last_lines(), refresh=True)

    def end(self) -> None:
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        if self._unfinished.strip():
            self._render(self._unfinished)

    def _render(self, block: str) -> None:
        self._live.update(Text(""))
        if self._has_blocks:
            self._console.print()
        self._console.print(_markdown(block.rstrip()))
        self._has_blocks = True

    def _last_lines(self) -> Text:
        lines = Text(self._unfinished).wrap(self._console, self._console.width)
        return Text("\n").join(lines[-max(1, self._console.height - 2) :])


def writer_for(console: Console, has_colours: bool) -> AnswerWriter:
    """Return the writer that suits the output: a terminal, with or without colours, or a pipe."""
    if not console.is_terminal:
        return PlainWriter(console)
    return ColouredWriter(console) if has_colours else MarkdownWriter(console)


def _markdown(text: str) -> Markdown:
    """Render a text, keeping HTML tags as text; rich would drop them with their contents."""
    rendered = Markdown(text)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    rendered.parsed = parser.parse(text)
    return rendered


def _end_of_block(text: str) -> int | None:
    """Return the place after the first complete block; None if it may continue.

    A blank line ends a block unless it is in a code fence, or the next line is indented as in a list.
    """
    fence, place, end = "", 0, None
    for line in text.split("\n"):
        if end is not None and line.strip():
            if not line[0].isspace():
                return end
            end = None
        bare = line.strip()
        if fence:
            fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
        elif opened := _FENCE.fullmatch(bare):
            fence = opened[1]
        elif not bare and end is None and text[:place].strip():
            end = place
        place += len(line) + 1
    return None
