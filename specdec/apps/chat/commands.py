"""The commands of a chat: lines that begin with a slash.

Each is a function of the chat and the text after the command's name; its docstring is its line in ``/help``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from specdec.apps.chat.attachments import attachment
from specdec.apps.chat.conversation import Conversation
from specdec.apps.chat.session import ChatAnswer, Session
from specdec.decoding.result import Chunk
from specdec.errors import RequestError, plural
from specdec.plugins.registry import load_plugins
from specdec.settings import Settings


class Stage(Protocol):
    """The output of a chat, such as a terminal.

    Attributes:
        has_colours: True if tokens of the same step are shown in the same colour.
    """

    has_colours: bool

    def say(self, line: str) -> None:
        """Show a message of the program, not of the model."""

    def show(self, chunks: Iterator[Chunk]) -> None:
        """Show an answer as it is decoded."""


@dataclass(frozen=True)
class Chat:
    """A session and its output."""

    session: Session
    stage: Stage


Command = Callable[[Chat, str], None]


def proposer(chat: Chat, text: str) -> None:
    """/proposer NAME  use this strategy from now on; without a name, show the current one"""
    if text:
        load_plugins().make("proposers", text)
        chat.session.proposer = text
    chat.stage.say(f"strategy: {chat.session.proposer}")


def plain(chat: Chat, text: str) -> None:
    """/plain  decode the last answer again without drafts, and compare the speeds"""
    _refuse(text)
    first = chat.session.last
    chat.stage.show(chat.session.plain())
    again = chat.session.again
    if first is None or again is None or not again.tokens:
        return
    same = "the same text ✓" if chat.session.is_same else _difference(first, again)
    mode = chat.session.generator.numerics.mode
    chat.stage.say(f"plain {_speed(again)}, {first.settings['proposer']} {_speed(first)}, in {mode} numerics; {same}")


def temperature(chat: Chat, text: str) -> None:
    """/temperature T  set the temperature; 0 is greedy"""
    if text:
        chat.session.settings["temperature"] = _setting("temperature", text)
    chat.stage.say(f"temperature: {chat.session.settings.get('temperature', 0.0):g}")


def seed(chat: Chat, text: str) -> None:
    """/seed N  set the seed of sampled answers; without a number, use a new one each time"""
    chat.session.seed = _setting("seed", text) if text else None
    chat.stage.say(f"seed: {'a new one each time' if chat.session.seed is None else chat.session.seed}")


def tokens(chat: Chat, text: str) -> None:
    """/tokens N  set the maximum number of tokens of an answer"""
    if text:
        chat.session.settings["max_new_tokens"] = _setting("max_new_tokens", text)
    chat.stage.say(f"at most {plural(chat.session.settings['max_new_tokens'], 'token')} an answer")


def system(chat: Chat, text: str) -> None:
    """/system TEXT  set the system prompt; without a text, use the template's own"""
    chat.session.conversation = chat.session.conversation.after_system_prompt(text or None)
    chat.stage.say(f"system prompt: {text or 'the template’s own'}")


def image(chat: Chat, text: str) -> None:
    """/image FILE  show the model an image with the next question; without a file, take back what was attached"""
    _attach(chat, "image", text)


def audio(chat: Chat, text: str) -> None:
    """/audio FILE  send a WAV recording with the next question"""
    _attach(chat, "audio", text)


def undo(chat: Chat, text: str) -> None:
    """/undo  remove the last question and its answer"""
    _refuse(text)
    chat.stage.say(f"removed: {chat.session.undo().question}")


def retry(chat: Chat, text: str) -> None:
    """/retry  answer the last question again"""
    _refuse(text)
    chat.stage.show(chat.session.retry())
    if not chat.session.settings.get("temperature"):
        chat.stage.say("at temperature 0 the answer is always the same: set /temperature 0.7 for others")


def save(chat: Chat, text: str) -> None:
    """/save FILE  write the conversation to a file"""
    path = _path(text)
    chat.session.conversation.save(path)
    chat.stage.say(f"saved to {path}")


def load(chat: Chat, text: str) -> None:
    """/load FILE  continue a saved conversation"""
    conversation = Conversation.load(_path(text))
    chat.session.conversation, chat.session.last = conversation, None
    num_turns = len(conversation.turns)
    chat.stage.say(f"loaded: {num_turns} turn{'' if num_turns == 1 else 's'}")
    for turn in conversation.turns[-1:]:
        chat.stage.say(f"the last: {turn.question}\n{turn.answer}")


def colours(chat: Chat, text: str) -> None:
    """/colours  turn colouring by step on or off"""
    _refuse(text)
    chat.stage.has_colours = not chat.stage.has_colours
    chat.stage.say(f"colours: {'on' if chat.stage.has_colours else 'off'}")


def help_(chat: Chat, text: str) -> None:
    """/help  show this list"""
    _refuse(text)
    for command in COMMANDS.values():
        chat.stage.say(command.__doc__ or "")
    chat.stage.say('Ctrl-C stops an answer, Ctrl-D leaves; """ begins and ends a question of several lines')


COMMANDS: dict[str, Command] = {
    command.__name__.strip("_"): command
    for command in (
        proposer,
        plain,
        temperature,
        seed,
        tokens,
        system,
        image,
        audio,
        undo,
        retry,
        save,
        load,
        colours,
        help_,
    )
}


def run(line: str, chat: Chat) -> None:
    """Run a line that begins with a slash.

    Raises:
        SpecdecError: for an unknown command, or an invalid argument.
    """
    name, _, text = line[1:].partition(" ")
    if name not in COMMANDS:
        raise RequestError(f"/{name} is not a command; commands: {', '.join(f'/{known}' for known in COMMANDS)}")
    COMMANDS[name](chat, text.strip())


def figures(answer: ChatAnswer) -> str:
    """Return the line after an answer: its speed, and how it ended."""
    ended = "" if answer.result is not None else "; stopped"
    if answer.result is not None and answer.result.finish_reason == "length":
        is_short = len(answer.tokens) < answer.settings["max_new_tokens"]
        ended = (
            "; cut at the model's last position" if is_short else "; cut at the maximum number of tokens: see /tokens"
        )
    if answer.result is not None and not answer.result.lossless:
        ended += "; LOSSY: not what the model alone would write"
    num_tokens = len(answer.tokens)
    return (
        f"{plural(num_tokens, 'token')}, {_speed(answer)}, {answer.tokens_per_step:.2f} a step, "
        f"the first after {1000 * answer.seconds_to_first:.0f} ms{ended}"
    )


def _speed(answer: ChatAnswer) -> str:
    speed = answer.tokens_per_second
    return "in one step" if speed is None else f"{speed:.0f} tokens/s"


def _difference(first: ChatAnswer, again: ChatAnswer) -> str:
    pairs = zip(first.tokens, again.tokens, strict=False)
    place = next((index for index, (one, other) in enumerate(pairs) if one != other), -1)
    ties = {tie for answer in (first, again) if answer.result is not None for tie in answer.result.ties}
    if place in ties:
        return f"another text from token {place} on, because of a numeric tie (--numerics exact has none)"
    return "ANOTHER TEXT, which isn't a numeric tie: run `specdec audit` for details"


def _attach(chat: Chat, kind: Literal["image", "audio"], path: str) -> None:
    session = chat.session
    session.attached = (*session.attached, attachment(kind, path)) if path else ()
    chat.stage.say(f"{plural(len(session.attached), 'file')} with the next question")


def _setting(name: str, text: str) -> Any:
    return getattr(Settings.make({name: text}), name)


def _path(text: str) -> Path:
    if not text:
        raise RequestError("a file's name is missing: /save talk.json, /load talk.json")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{text}: {error}") from error


def _refuse(text: str) -> None:
    if text:
        raise RequestError(f"this command has no argument, but {text!r} was given")
