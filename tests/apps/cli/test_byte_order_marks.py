"""A byte-order mark at the head of a file or of standard input is no part of the text."""

from pathlib import Path
from typing import Any

from specdec.apps.chat.conversation import Conversation, Turn
from specdec.apps.comparison.prompts import load_prompts
from specdec.apps.comparison.runfile import RunFile, read
from tests.apps.comparison.made import plan_of, runs_of

MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
PROMPT = "# heapq\ndef merge("


def marked(path: Path) -> Path:
    """The file with a mark at its head, in the place of the one without it."""
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return path


def test_a_prompt_has_none(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    expected = run("generate", PROMPT, "--max-new-tokens", "8", "--seed", "1", "--json")[1]
    text = expected[: expected.index('"finish_reason"')]
    for arguments, stdin in ((("--file", str(marked(file))), ""), ((), MARK + PROMPT)):
        code, out, _ = run("generate", *arguments, "--max-new-tokens", "8", "--seed", "1", "--json", stdin=stdin)
        assert code == 0
        assert out.startswith(text)


def test_a_file_of_nothing_else_is_an_empty_prompt(run: Any, tmp_path: Path) -> None:
    empty = tmp_path / "prompt.txt"
    empty.touch()
    for arguments, stdin in ((("--file", str(marked(empty))), ""), ((), MARK)):
        code, _, err = run("generate", *arguments, stdin=stdin)
        assert code == 2
        assert "the prompt is empty" in err


def test_a_chats_first_line_has_none(run: Any) -> None:
    code, out, err = run("chat", stdin=f"{MARK}/tokens 7\n{MARK}/temperature 0.5\n")
    assert (code, out) == (0, "")
    assert "at most 7 tokens an answer" in err
    assert "temperature: 0.5" in err


def test_a_saved_conversation_is_read(tmp_path: Path) -> None:
    talk = Conversation().followed_by(Turn(question="Who?", answer="I."))
    talk.save(tmp_path / "talk.json")
    assert Conversation.load(marked(tmp_path / "talk.json")) == talk


def test_a_run_file_is_read(tmp_path: Path) -> None:
    plan = plan_of(["plain"], num_prompts=1, repeats=1)
    runs = runs_of(plan, lambda *_: 0.1)
    file = RunFile(tmp_path / "run.jsonl", plan)
    for run in runs:
        file.add(run)
    file.close()
    assert read(marked(tmp_path / "run.jsonl")) == (plan, runs)


def test_prompts_are_read(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "once"}\n', encoding="utf-8")
    assert [each.prompt for each in load_prompts(marked(prompts))] == ["once"]
