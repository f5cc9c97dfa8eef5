"""The lines that somebody writes to a chat, from a terminal or a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

_MARK = "> "
_QUOTES = '"""'  # begin and end a question of several lines


# Gives the next line behind a mark; EOFError is the end, and KeyboardInterrupt a line that was given up.
Reader = Callable[[str], str]


def questions(read: Reader) -> Iterator[str]:
    """Questions and commands, one after another; those between triple quotes have several lines.

    Ctrl-C gives up a line, the end of the input ends them.
    """
    while True:
        try:
            line = read(_MARK)
            while line.startswith(_QUOTES) and not (len(line) > len(_QUOTES) and line.endswith(_QUOTES)):
                line = f"{line}\n{read('… ')}"
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        question = line.removeprefix(_QUOTES).removesuffix(_QUOTES) if line.startswith(_QUOTES) else line
        if question.strip():
            yield question.strip()


def reader(history: Path, commands: list[str]) -> Reader:
    """Lines with editing, history and completion in a terminal; without prompt_toolkit, those that Python has."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _piped
    try:
        from prompt_toolkit import PromptSession
    except ImportError:
        with suppress(ImportError):
            import readline  # noqa: F401 - input() has line editing by it
        Console(stderr=True).print(
            "several lines and a history that lasts: pip install 'specdec\\[chat]'", style="dim", soft_wrap=True
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
    with suppress(OSError):  # a folder that can't be written to costs the history alone
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


def _piped(mark: str) -> str:
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:  # nobody is there to write another
        raise typer.Abort from None
    if not line:
        raise EOFError
    return line.rstrip("\n")
