"""Reads the user's lines of a chat from a terminal or a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TextIO

import typer
from rich.console import Console

from specdec.apps.cli.options import BYTE_ORDER_MARK
from specdec.errors import RequestError
from specdec.machine.extras import command_for

_MARK = "> "
_QUOTES = '"""'  # begin and end a question of several lines


# Returns the next line after a prompt; EOFError is the end, and KeyboardInterrupt a discarded line.
Reader = Callable[[str], str]


class Line(NamedTuple):
    """A question or a command."""

    text: str
    is_quoted: bool  # so it isn't a command, whatever it begins with


def questions(read: Reader) -> Iterator[Line]:
    """Yield questions and commands; a question between triple quotes may have several lines.

    Ctrl-C discards a line; the end of the input ends the iteration.
    """
    has_ended = False
    while not has_ended:
        line = ""
        try:
            line = read(_MARK)
            while line.startswith(_QUOTES) and not (len(line) > len(_QUOTES) and line.endswith(_QUOTES)):
                line = f"{line}\n{read('… ')}"
        except EOFError:
            if not line.startswith(_QUOTES):
                return
            has_ended = True  # between quotes
        except KeyboardInterrupt:
            continue
        is_quoted = line.startswith(_QUOTES)
        text = line.removeprefix(_QUOTES).removesuffix(_QUOTES) if is_quoted else line
        if text.strip():
            yield Line(text.strip(), is_quoted)


def reader(history: Path, commands: list[str]) -> Reader:
    """Return a reader with editing, history and completion in a terminal; without prompt_toolkit, Python's own."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return _piped
    try:
        from prompt_toolkit import PromptSession
    except ImportError:
        with suppress(ImportError):
            import readline  # noqa: F401 - input() has line editing by it
        Console(stderr=True).print(
            f"several lines and a history that lasts: {command_for('chat')}", style="dim", soft_wrap=True, markup=False
        )
        return input
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    kept: History = InMemoryHistory()
    with suppress(OSError):  # if the folder can't be written to, only the history is lost
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch()
        kept = FileHistory(str(history))
    session: PromptSession[str] = PromptSession(
        history=kept,
        key_bindings=keys,
        completer=WordCompleter(commands, sentence=True),
        complete_while_typing=False,
    )
    return partial(session.prompt)


@contextmanager
def without_echo() -> Iterator[None]:
    """Hide what is typed within the block, while an answer is drawn, and keep it for the next line."""
    if not is_terminal(sys.stdin) or find_spec("termios") is None:  # a pipe, or not Unix
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def is_terminal(stream: TextIO | None) -> bool:
    """Return True for a terminal; a closed stream is None."""
    return stream is not None and stream.isatty()


def _piped(mark: str) -> str:
    if sys.stdin is None:
        raise EOFError
    if is_terminal(sys.stdin):  # the answers go elsewhere
        print(mark, end="", file=sys.stderr, flush=True)  # noqa: T201
    try:
        line = sys.stdin.readline()
    except UnicodeError as error:
        raise RequestError("standard input is not UTF-8 text: convert it first") from error
    except KeyboardInterrupt:
        if is_terminal(sys.stdin):
            raise
        raise typer.Abort from None  # no user can write another line
    if not line:
        raise EOFError
    return line.rstrip("\n").removeprefix(BYTE_ORDER_MARK)
