"""The demo: what a pipe and what a terminal get, the model it takes, and how it ends."""

import io
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from tqdm import tqdm

from specdec import ModelError
from specdec.apps.cli.columns import Column, Columns, printable
from specdec.apps.side_by_side import agreement, contenders, load_by_others
from specdec.apps.side_by_side.agreement import Agreement
from specdec.apps.side_by_side.contenders import TimedAnswer
from specdec.apps.side_by_side.questions import built_in_questions
from specdec.demo import gguf_conversion
from specdec.demo import smollm2 as real

command: Any = import_module("specdec.apps.cli.demo")  # the package has the command by that name
FEW = ("--model", "demo", "--max-new-tokens", "8")


@pytest.fixture(autouse=True)
def _by_torch(built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A quiet machine, and the shared model as it was."""
    monkeypatch.setattr(load_by_others, "load_by_others", lambda: 0.0)
    own = built_in[0].generation_config
    yield
    built_in[0].generation_config = own


def test_a_pipe_gets_lines_a_table_and_one_sentence(run: Any, built_in: tuple[Any, Any]) -> None:
    code, out, err = run("demo", *FEW)
    assert (code, err) == (0, "")
    assert not [character for character in out if not character.isprintable() and character not in "\n\t"]
    for place, question in enumerate(built_in_questions()):
        assert f"\n{place + 1} of 3: {question.kind}\n{question.text.rstrip()}\n" in out
    texts = re.findall(r"transformers' generate, 8 tokens, [\d.]+/s:\n(.+?)\n\nspecdec, 8 tok", out, flags=re.DOTALL)
    assert len(texts) == 3
    for text in texts:
        assert out.count(f"/s:\n{text}\n\nspecdec") == 2  # transformers' and specdec's own
    lines = [line for line in out.splitlines() if re.match(r"(specdec|transformers)\b.* \d+\.\d\d ", line)]
    rows = {line[:18].strip(): line[18:].split() for line in lines}
    theirs, plain, ours = rows["transformers"], rows["specdec, no drafts"], rows["specdec"]
    assert (theirs[1:], plain[2:], ours[3]) == (["1", "1.00", "–"], ["1.00", "yes"], "yes")
    assert "specdec with and without drafts in exact numerics." in out
    (sentence,) = [line for line in out.splitlines() if line.startswith("On this machine ")]
    whole = float(ours[0]) / float(theirs[0])
    (said,) = re.findall(r"(\d+\.\d+) times as fast(?: as transformers| in all|, and writes)", sentence)
    assert float(said) == pytest.approx(whole, rel=0.1)


def test_a_terminal_of_60_columns_without_colour(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("COLUMNS", "60"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    code, out, _ = run("demo", *FEW)
    assert code == 0
    lines = on_screen(out, 60)
    assert sum("─ transformers' generate ─" in line and "─ specdec ─" in line for line in lines) == 3
    assert sum(line.startswith("On this machine") for line in lines) == 1
    assert max(map(cell_len, lines)) <= 60
    assert out.rfind("\x1b[?25h") > out.rfind("\x1b[?25l")  # the cursor is back
    assert "\x1b[1m" in out
    assert not colours(out)
    assert "share a colour" not in out


def colours(written: str) -> list[int]:
    """The colours that are switched to."""
    codes = [code for codes in re.findall(r"\x1b\[([\d;]*)m", written) for code in codes.split(";") if code]
    return [int(code) for code in codes if 30 <= int(code) <= 107]


def on_screen(written: str, width: int, height: int = 60) -> list[str]:
    """The lines that a terminal of that width has in the end, those that were scrolled off included."""
    pyte = pytest.importorskip("pyte")
    screen = pyte.HistoryScreen(width, height, history=1000)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(written)
    above = ["".join(line[x].data for x in range(width)).rstrip() for line in screen.history.top]
    return [*above, *(line.rstrip() for line in screen.display)]


class Words:
    """A tokenizer of numbered words."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(f"word{number:03}" for number in ids)


@pytest.mark.parametrize(("width", "height"), [(40, 10), (60, 24), (80, 10), (140, 40)])
def test_both_texts_stand_in_full_at_the_end_and_once(width: int, height: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=height)
    left, right = Column("their side", Words()), Column("our side", Words())
    columns = Columns(console, [left, right])
    with columns.shown():
        for column, size in ((left, 4), (right, 12)):
            column.begin()
            for start in range(0, 120, size):
                columns.add(column, range(start, start + size), 1.0 + start)
                columns.draw()
            column.finish(TimedAnswer(tuple(range(120)), 120.0, 120 // size))
        columns.say("what stands below")
    assert colours(file.getvalue())  # of tokens that came together
    text = "\n".join(on_screen(file.getvalue(), width, height))
    for number in range(120):
        assert text.count(f"word{number:03}") == 2
    assert text.count("their side") == text.count("our side") == text.count("what stands below") == 1
    assert text.count("120 tokens, 1.0/s") == 2
    assert file.getvalue().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")


def test_an_interrupt_leaves_the_cursor_visible() -> None:
    file = io.StringIO()
    columns = Columns(Console(file=file, force_terminal=True, width=60), [Column("a", Words()), Column("b", Words())])

    def interrupted() -> None:
        with columns.shown():
            columns.draw()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    written = file.getvalue()
    assert "\x1b[?25l" in written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


def test_an_interrupt_ends_the_command_quietly(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> TimedAnswer:
        raise KeyboardInterrupt

    monkeypatch.setattr(contenders.SpecdecContender, "answer", interrupted)
    code, out, err = run("demo", *FEW)
    assert code == 130
    assert "Traceback" not in out + err


def test_a_character_that_is_not_whole_yet_waits_and_a_text_that_changes_is_put_right() -> None:
    class Bytes:
        def decode(self, ids: list[int], **_: Any) -> str:
            return bytes(ids).decode("utf-8", errors="replace")

    column = Column("a", Bytes())
    for byte in "ä!".encode():
        column.add([byte], 1.0)
    assert column.text.plain == "ä!"

    class Whims(Words):
        def decode(self, ids: list[int], **_: Any) -> str:
            return "x" * len(ids) if len(ids) < 3 else "another text"

    column = Column("a", Whims())
    for number in range(3):
        column.add([number], 1.0)
    column.finish(TimedAnswer((0, 1, 2), 1.0, 3))
    assert column.text.plain == "another text"


def test_what_drives_a_terminal_is_not_printed() -> None:
    assert printable("a\x1b[31mb\tc\nd\x07\u202e") == "a [31mb\tc\nd  "


def test_a_column_says_what_it_does() -> None:
    column = Column("a", Words())
    assert column.figures() == "waits its turn"
    column.begin()
    assert column.figures() == "reads the prompt"
    column.add([1], 0.5)
    assert column.figures() == "1 token, 2.0/s"
    column.add([2], 0.5)
    assert column.figures() == "2 tokens, 4.0/s"


@pytest.mark.parametrize(
    "fault",
    [
        ModelError("converting needs gguf: pip install -e '.[real-model]', in a copy of specdec's repository"),
        OSError(28, "No space left on device"),
    ],
    ids=["library", "disk"],
)
def test_where_the_real_model_cannot_be_fetched_the_reason_is_said_and_the_built_in_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_conversion, "check_libraries", lambda: None)
    monkeypatch.setattr(real, "fetch", fails)
    file = io.StringIO()
    assert command._real_or_built_in(Console(file=file)) == "demo"
    first, second = file.getvalue().splitlines()
    assert first == f"SmolLM2-135M-Instruct can't be fetched: {fault}"
    assert second.startswith("The built-in model takes its place.")


def test_the_real_model_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(folder: Path, say: Any) -> None:
        say(f"downloading to {folder.parent}")
        for _ in tqdm([1], desc="a library's progress"):
            print("a warning", file=sys.stderr)
        folder.mkdir(parents=True)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_conversion, "check_libraries", lambda: None)
    monkeypatch.setattr(real, "fetch", fetch)
    for _ in range(2):
        assert command._real_or_built_in(Console()) == "smollm2"
    assert capsys.readouterr() == ("", f"downloading to {tmp_path / 'specdec'}\na warning\n")


def test_another_text_fails_and_a_busy_machine_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_by_others, "load_by_others", lambda: 7.5)
    found = iter([Agreement("same"), Agreement("defect", 3, "far apart"), *[Agreement("numeric tie", 1, "close")] * 4])
    monkeypatch.setattr(agreement, "agreement", lambda *_: next(found))
    code, out, _ = run("demo", *FEW)
    assert code == 1
    assert "\nOn this machine, busy with other programs, specdec " in out
    assert " writes ANOTHER TEXT" in out
    assert "Other programs used the processor as well (a load of 7.5)" in out
    assert "specdec, arithmetic: differs from token 4 on, A DEFECT, please report it: far apart." in out
    assert "specdec without drafts, code: differs from token 2 on, a numeric tie: close." in out
    assert re.search(r"^specdec, no drafts .* 3 ties$", out, flags=re.MULTILINE)
    assert re.search(r"^specdec  .* NO$", out, flags=re.MULTILINE)
