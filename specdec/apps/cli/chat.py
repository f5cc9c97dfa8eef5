"""The command that chats with a model."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.early_checks import check_readable
from specdec.apps.cli.media_options import NO_MEDIA, MediaOptions
from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.options import ProposerOption, Seed, Temperature, before_anything_runs, check_request
from specdec.apps.cli.progress import status
from specdec.apps.cli.ranked_choice import takes_model
from specdec.errors import SpecdecError
from specdec.machine.cache_folder import cache_folder

if TYPE_CHECKING:
    from specdec.apps.chat.commands import Chat
    from specdec.apps.chat.session import Session
    from specdec.apps.cli.chat_input import Line
    from specdec.decoding.result import Chunk


@takes_model
def chat(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    choice: ModelChoice = USUAL,
    proposer: ProposerOption = "auto",
    system: Annotated[str | None, typer.Option(help="the system prompt (default: the template's own)")] = None,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="maximum tokens of an answer")] = 512,
    load: Annotated[Path | None, typer.Option(help="continue a conversation saved by /save")] = None,
    colours: Annotated[bool, typer.Option("--colours", help="colour tokens by step")] = False,
    media: MediaOptions = NO_MEDIA,
) -> None:
    """Chat with a model in the terminal.

    /help lists the commands.
    Without a terminal, each line of standard input is a question, and its answer goes to standard output.
    """
    settings: dict[str, Any] = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    with before_anything_runs():
        check_readable(load)
        attached = media.parts()
        choice.check_early(proposer, settings=settings | {"seed": seed})
        from specdec.apps.chat.conversation import Conversation

        conversation = Conversation() if load is None else Conversation.load(load)
        check_request(proposer, **choice.stages, settings=settings | {"seed": seed})
        from specdec.apps.chat.commands import COMMANDS, Chat
        from specdec.apps.chat.session import Session, check_template
        from specdec.apps.cli.chat_input import is_terminal, questions, reader
        from specdec.generator import Generator

        if system is not None:
            conversation = conversation.after_system_prompt(system)
        model, tokenizer = choice.load(proposer, has_media=True)
        check_template(tokenizer)
        with status("trying the model out"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* is lossy|.*not what the model")  # the figures say so
            generator = Generator(model, tokenizer, proposer=proposer, **choice.stages)
    # strategies may save data when the generator is closed
    with closing(generator), closing(Session(generator, SystemRandom(), proposer, **settings)) as session:
        session.conversation, session.seed, session.attached = conversation, seed, attached
        talk = Chat(session, Screen(session, colours))
        if is_terminal(sys.stdin):
            talk.stage.say(
                f"{choice.name}, {generator.numerics.mode} numerics; /help lists the commands, Ctrl-D leaves"
            )
        commands = [f"/{name}" for name in COMMANDS]
        for line in questions(reader(cache_folder() / "chat_history", commands)):
            _answer(talk, line)


def _answer(talk: "Chat", line: "Line") -> None:
    """Answer a question or run a command; print refusals, and continue."""
    from specdec.apps.chat.commands import run
    from specdec.apps.chat.session import OutgrownError
    from specdec.apps.cli.chat_input import is_terminal

    try:
        if line.text.startswith("/") and not line.is_quoted:
            run(line.text, talk)
            return
        try:
            talk.stage.show(talk.session.ask(line.text))
        except OutgrownError as error:
            talk.stage.say(f"{error}.")
            if talk.session.conversation.turns and _agrees("Drop the oldest turns and continue?"):
                talk.stage.say(f"dropped: {talk.session.drop_oldest(line.text)}; the newer ones stay")
                talk.stage.show(talk.session.ask(line.text))
    except SpecdecError as error:
        talk.stage.say(f"error: {error}")
    except KeyboardInterrupt:
        if not is_terminal(sys.stdin):
            raise


class Screen:
    """A chat in a terminal or a pipe: answers go to standard output, everything else to standard error."""

    def __init__(self, session: "Session", has_colours: bool) -> None:
        self._session, self.has_colours = session, has_colours
        self._noted = set[str]()
        self._console, self._beside = Console(highlight=False), Console(stderr=True, highlight=False)

    def say(self, line: str) -> None:
        """Show a message of the program, not of the model."""
        self._beside.print(line, style="dim", markup=False, soft_wrap=not self._beside.is_terminal)

    def show(self, chunks: Iterator["Chunk"]) -> None:
        """Show an answer as it is decoded; Ctrl-C ends it."""
        from specdec.apps.chat.commands import figures
        from specdec.apps.cli.answers import writer_for
        from specdec.apps.cli.chat_input import is_terminal, without_echo

        shown = None
        may_stop = _stopping(self._session.stop) if is_terminal(sys.stdin) else nullcontext()
        with status("reading") as vanish, may_stop, without_echo():
            try:
                for chunk in chunks:
                    vanish()
                    shown = shown or writer_for(self._console, self.has_colours)
                    shown.add(chunk)
            finally:
                if shown is not None:
                    shown.end()
        latest = self._session.latest
        self.say(figures(latest) if latest and latest.tokens else "stopped before its first token")
        for note in latest.result.notes if latest and latest.result else ():
            if note not in self._noted:  # once in a chat
                self._noted.add(note)
                self.say(note)


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, Ctrl-C stops after the current pass, whose text is complete."""
    before = signal.signal(signal.SIGINT, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _agrees(question: str) -> bool:
    """Ask the user; without a terminal, return True."""
    from specdec.apps.cli.chat_input import is_terminal

    if not is_terminal(sys.stdin):
        return True
    try:
        return input(f"{question} [Y/n] ").strip().lower() in {"", "y", "yes"}
    except (EOFError, KeyboardInterrupt):
        return False
