"""Commands of a chat: what they set is what the next answer is decoded with, and what they refuse changes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from specdec import Generator, SpecdecError
from specdec.apps.chat.commands import COMMANDS, Chat, figures, run
from specdec.apps.chat.session import Session


class Heard:
    """A stage that keeps what it is told."""

    def __init__(self) -> None:
        self.has_colours = False
        self.lines: list[str] = []
        self.answers: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, chunks: Iterator[Any]) -> None:
        self.answers.append("".join(chunk.text for chunk in chunks))


@pytest.fixture(name="chat")
def _chat(built_in: tuple[Any, Any]) -> Iterator[Chat]:
    generator = Generator(*built_in, proposer="autoregressive")
    session = Session(generator, Random(0), "autoregressive", max_new_tokens=16)
    yield Chat(session, Heard())
    session.close()
    generator.close()


def heard(chat: Chat) -> Heard:
    assert isinstance(chat.stage, Heard)
    return chat.stage


def ask(chat: Chat, question: str) -> str:
    chat.stage.show(chat.session.ask(question))
    return heard(chat).answers[-1]


def test_settings_hold_for_the_answers_to_come(chat: Chat) -> None:
    for line in ("/proposer jacobi:n=3", "/temperature 0.5", "/seed 7", "/tokens 5", "/system Be brief."):
        run(line, chat)
    ask(chat, "What is bread?")
    last = chat.session.last
    assert last is not None
    assert last.settings == {"proposer": "jacobi:n=3", "temperature": 0.5, "seed": 7, "max_new_tokens": 5}
    assert last.conversation.asking("x")[0] == {"role": "system", "content": "Be brief."}
    for line in ("/seed", "/system", "/proposer", "/temperature", "/tokens", "/colours"):
        run(line, chat)
    assert chat.session.seed is None
    assert chat.session.conversation.system is None
    assert heard(chat).lines[-4:] == [
        "strategy: jacobi:n=3",
        "temperature: 0.5",
        "at most 5 tokens an answer",
        "colours: on",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nothing", r"/nothing is not a command; commands: /proposer, .*/help"),
        ("/", r"/ is not a command"),
        ("/proposer nothing", "nothing"),
        ("/proposer jacobi:m=3", "jacobi"),
        ("/temperature warm", "'warm'.*valid number"),
        ("/temperature -1", "temperature"),
        ("/temperature nan", "temperature"),
        ("/seed x", "seed"),
        ("/seed -1", "seed"),
        ("/tokens 0", "max_new_tokens"),
        ("/tokens 1.5", "max_new_tokens"),
        ("/undo", "there is no turn yet"),
        ("/undo 3", "has no argument, but '3'"),
        ("/image no_such_file", "no_such_file can't be read"),
        ("/image https://host/x.png", "give a file, since nothing is fetched"),
        ("/image tests", "can't be read"),
        ("/audio pyproject.toml", "pyproject.toml: the recording isn't a WAV file"),
        ("/retry", "there is no turn yet"),
        ("/plain", "ask a question first"),
        ("/save", "a file's name is missing"),
        ("/load", "a file's name is missing"),
        ("/load no_such_file", "can't be read"),
        ("/save /", "can't be written"),
        ("/save ~no_such_user/talk.json", "no_such_user"),
    ],
)
def test_what_is_refused_changes_nothing(chat: Chat, line: str, said: str) -> None:
    before = vars(chat.session) | {"settings": dict(chat.session.settings)}
    with pytest.raises(SpecdecError, match=said):
        run(line, chat)
    assert vars(chat.session) == before
    assert heard(chat).lines == []


def test_plain_decoding_is_said_with_both_speeds(chat: Chat) -> None:
    run("/proposer prompt_lookup", chat)
    answer = ask(chat, "What is bread?")
    run("/plain", chat)
    assert heard(chat).answers[-1] == answer
    assert "tokens/s, prompt_lookup" in heard(chat).lines[-1]
    assert heard(chat).lines[-1].endswith("; the same text ✓")
    assert len(chat.session.conversation.turns) == 1


def test_another_text_is_a_tie_only_where_one_lies_at_the_difference(chat: Chat, monkeypatch: Any) -> None:
    ask(chat, "What is bread?")
    original = chat.session.plain
    for ties, said in (
        ((), "ANOTHER TEXT"),
        ((3,), "ANOTHER TEXT"),
        ((2,), "from token 2 on, because of a numeric tie"),
    ):
        assert chat.session.last is not None
        assert chat.session.last.result is not None
        chat.session.last.result = replace(chat.session.last.result, ties=ties)

        def other() -> Iterator[Any]:
            yield from original()
            assert chat.session.again is not None
            chat.session.again.tokens[2] += 1

        monkeypatch.setattr(chat.session, "plain", other)
        run("/plain", chat)
        assert said in heard(chat).lines[-1]


def test_undo_retry_save_and_load(chat: Chat, tmp_path: Path) -> None:
    first = ask(chat, "What is bread?")
    run(f"/save {tmp_path}/my talk.json", chat)
    ask(chat, "And butter?")
    run("/undo", chat)
    assert heard(chat).lines[-1] == "removed: And butter?"
    run("/retry", chat)
    assert heard(chat).answers[-1] == first
    assert "always the same" in heard(chat).lines[-1]
    run("/undo", chat)
    run(f"/load {tmp_path}/my talk.json", chat)
    assert heard(chat).lines[-2:] == ["loaded: 1 turn", f"the last: What is bread?\n{first}"]
    assert ask(chat, "And butter?") == heard(chat).answers[1]


def test_help_has_a_line_for_each_command(chat: Chat) -> None:
    run("/help", chat)
    assert [line.split()[0] for line in heard(chat).lines[:-1]] == [f"/{name}" for name in COMMANDS]


def test_figures_say_how_an_answer_ended(chat: Chat) -> None:
    ask(chat, "What is bread?")
    last = chat.session.last
    assert last is not None
    assert figures(last).startswith("16 tokens, ")
    assert figures(last).endswith("ms; cut at the maximum number of tokens: see /tokens")
    chunks = chat.session.ask("And butter?")
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]  # a generator
    assert chat.session.last is not None
    assert figures(chat.session.last).startswith("1 token, in one step, 1.00 a step")
    assert figures(chat.session.last).endswith("; stopped")
