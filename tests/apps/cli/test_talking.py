"""The chat command: piped, and how answers and lines of a terminal are handled."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specdec import demo
from specdec.apps.cli.answers import ColouredWriter, MarkdownWriter, _end_of_block, writer_for
from specdec.apps.cli.chat_input import questions
from specdec.decoding.result import Chunk

PIECES = ["# Ti", "tle\n", "\nSome **bo", "ld** text\n\n", "```python\nx = 1\n", "\ny = 2\n```\n\n- o", "ne\n- two"]


def test_a_quoted_line_is_no_command(run: Any) -> None:
    code, out, err = run("chat", "--max-new-tokens", "4", stdin='"""/etc/passwd, what is it?"""\n')
    assert code == 0
    assert out.strip()
    assert "is not a command" not in err


def test_without_a_terminal_lines_are_questions(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    lines = f"What is bread?\n\n/temperature x\n/save {path}\nAnd butter?\n"
    code, out, err = run("chat", "--max-new-tokens", "8", "--proposer", "jacobi:n=2", stdin=lines)
    assert code == 0
    assert len(out.splitlines()) >= 2
    assert err.count(" tokens, ") == 2
    assert "error: settings refused: temperature='x'" in err
    code, again, _ = run("chat", "--max-new-tokens", "8", "--load", str(path), stdin="And butter?")
    assert code == 0
    assert out.endswith(again)
    assert "\x1b" not in out + err


def test_notes_on_the_strategy_are_said_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.heads.strategies.target_weights.alterations_of", lambda _: ["an adapter"])
    proposer = f"eagle3:head={demo.head_folder()}"
    code, _, err = run("chat", "--max-new-tokens", "6", "--proposer", proposer, stdin="What is bread?\nAnd butter?\n")
    assert code == 0
    assert err.count(" tokens, ") == 2
    assert err.count("the model has an adapter") == 1


def test_a_conversation_that_outgrows_the_model_forgets_its_oldest_turns(
    run: Any, built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built_in[0].config, "max_position_embeddings", 1024)
    lines = "\n".join(f"Tell me {'more and ' * 80} everything about number {number}." for number in range(8))
    code, _, err = run("chat", "--max-new-tokens", "8", "--proposer", "prompt_lookup", stdin=lines)
    assert code == 0
    assert err.count(" a step, ") == 8
    assert "dropped: " in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--proposer", "nothing"), "nothing"),
        (("--temperature", "-1"), "temperature"),
        (("--load", "no_such_file"), "no_such_file can't be read"),
        (("--model", "no/such/folder"), "no/such/folder"),
    ],
)
def test_what_cannot_be_is_said_before_the_model_is_loaded(run: Any, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run("chat", *arguments, stdin="Hello\n")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_model_without_a_template_is_refused(run: Any, built_in: tuple[Any, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(built_in[1], "chat_template", None)
    code, _, err = run("chat", stdin="Hello\n")
    assert code == 2
    assert "has no chat template" in err


def test_input_that_is_no_text_is_one_line(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("io.StringIO", lambda _: io.TextIOWrapper(io.BytesIO(b"Hello\xff\n"), encoding="utf-8"))
    code, _, err = run("chat", "--max-new-tokens", "4", stdin="")
    assert code == 1
    assert "not UTF-8" in err
    monkeypatch.setattr("io.StringIO", lambda _: None)
    code, _, err = run("chat", "--max-new-tokens", "4", stdin="")
    assert code == 0


def lines_of(*lines: str | type[BaseException]) -> Any:
    given: Iterator[str | type[BaseException]] = iter(lines)

    def read(mark: str) -> str:
        line = next(given, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["one", "", "  ", " two "], ["one", "two"]),
        (["one", KeyboardInterrupt, "two"], ["one", "two"]),
        (['"""one', "", 'two"""', "three"], ["one\n\ntwo", "three"]),
        (['"""one"""'], ["one"]),
        (['"""one', KeyboardInterrupt, "two"], ["two"]),
        (['"""one', "two"], ["one\ntwo"]),
    ],
)
def test_lines_become_questions(lines: list[Any], expected: list[str]) -> None:
    assert [line.text for line in questions(lines_of(*lines))] == expected


def shown(pieces: list[str], width: int = 40, has_colours: bool = False, height: int = 10, num_above: int = 0) -> str:
    """What a terminal of that size has on its lines at the end."""
    pyte = pytest.importorskip("pyte")
    screen = pyte.HistoryScreen(width, height, history=1000)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(screen)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=height)
    writer = writer_for(console, has_colours)
    for piece in pieces:
        writer.add(Chunk((1, 2), piece))
    writer.end()
    stream.feed("\n" * num_above + file.getvalue())
    above = ["".join(line[x].data for x in range(width)).rstrip() for line in screen.history.top]
    return "\n".join([*above, *(line.rstrip() for line in screen.display)]).strip("\n")


@pytest.mark.parametrize("num_above", [0, 9, 30])
def test_markdown_is_rendered_block_by_block_and_nothing_is_shown_twice(num_above: int) -> None:
    text = shown([letter for piece in PIECES for letter in piece], num_above=num_above)
    assert "**" not in text
    assert "```" not in text
    for part in ("Title", "Some bold text", "x = 1", "y = 2", "one", "two"):
        assert text.count(part) == 1


@pytest.mark.parametrize(
    "text",
    ["<think>\nhm\n\n", "a vector<int> of <b>x</b>\n\n", "press </kbd> twice", "<div>\nin it\n</div>\n\nlast"],
)
def test_tags_are_text(text: str) -> None:
    assert shown([text]).split() == text.split()


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("one\n\ntwo", "one\n"),
        ("one\n\n", None),
        ("\n\none\n\ntwo", "\n\none\n"),
        ("1. a\n\n    - b\n\n2. c", "1. a\n\n    - b\n"),
        ("```\na\n\nb\n", None),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n"),
        ("````\n```\n\nx\n```\n\n````\n\nc", "````\n```\n\nx\n```\n\n````\n"),
        ("```x``` y\n\nz", "```x``` y\n"),
        ("one\u2028two\x0bx\n\nz", "one\u2028two\x0bx\n"),
    ],
)
def test_blocks_end_at_blank_lines_outside_of_code_and_lists(text: str, block: str | None) -> None:
    end = _end_of_block(text)
    assert (None if end is None else text[:end]) == block


def test_a_block_longer_than_the_screen_is_whole_at_the_end() -> None:
    words = [f"word{number:03} " for number in range(150)]
    text = shown(words)
    assert all(text.count(word.strip()) == 1 for word in words)


def test_colours_show_the_text_as_it_is() -> None:
    assert shown(PIECES, has_colours=True).split() == "".join(PIECES).split()


def test_a_pipe_gets_the_text_to_the_letter() -> None:
    file = io.StringIO()
    writer = writer_for(Console(file=file), has_colours=False)
    for piece in PIECES:
        writer.add(Chunk((1,), piece))
    writer.end()
    assert file.getvalue() == "".join(PIECES) + "\n"


def test_steps_of_several_tokens_take_turns_in_colour() -> None:
    file = io.StringIO()
    writer = ColouredWriter(Console(file=file, force_terminal=True, color_system="standard"))
    for number, text in ((2, "a"), (1, "b"), (3, "c")):
        writer.add(Chunk(tuple(range(number)), text))
    writer.end()
    assert file.getvalue() == "\x1b[36ma\x1b[0mb\x1b[35mc\x1b[0m\n"


def test_an_answer_that_is_stopped_early_shows_what_there_is() -> None:
    file = io.StringIO()
    writer = MarkdownWriter(Console(file=file, force_terminal=True, width=40))
    writer.end()
    assert "None" not in file.getvalue()
