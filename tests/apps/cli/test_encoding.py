"""Output in an encoding that lacks a text's characters: they are replaced, and files are UTF-8 all the same."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec.apps import cli
from specdec.apps.chat.session import Session
from specdec.decoding.result import Chunk

FOX, TEXT = "\N{FOX FACE}", "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{FOX FACE} def add("
FEW = ("--max-new-tokens", "3", "--model", "demo")


@pytest.fixture(name="bytes_of")
def _bytes_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exit code of a command, and what it writes in an encoding that refuses what it lacks, as bytes."""

    def run(encoding: str, *arguments: str, stdin: str = "") -> tuple[Any, bytes, bytes]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
        monkeypatch.setattr(sys, "argv", ["specdec", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as left:
            cli.main()
        out.flush()
        err.flush()
        return left.value.code, out.buffer.getvalue(), err.buffer.getvalue()  # type: ignore[attr-defined]

    return run


@pytest.mark.parametrize(("encoding", "shown"), [("cp1252", b"caf\xe9 ? def add("), ("ascii", b"caf? ? def add(")])
def test_characters_that_a_trace_cannot_show_are_replaced_and_its_files_have_them(
    bytes_of: Any, tmp_path: Path, encoding: str, shown: bytes
) -> None:
    page, data, mask = tmp_path / "trace.html", tmp_path / "trace.json", tmp_path / "mask.svg"
    code, out, _ = bytes_of(encoding, "trace", TEXT, *FEW, "--html", str(page), "--json", str(data))
    assert code == 0
    assert out
    assert FOX in page.read_text(encoding="utf-8")
    assert json.loads(data.read_text(encoding="utf-8"))["prompt"] == TEXT
    code, out, _ = bytes_of(encoding, "race", "jacobi", "suffix", "--prompt", TEXT, *FEW)
    assert (code, b"the texts are identical" in out) == (0, True)
    code, out, _ = bytes_of(encoding, "mask", "--prompt", TEXT, *FEW, "--out", str(mask))
    assert (code, bool(out)) == (0, True)
    code, _, err = bytes_of(encoding, "generate", "x", "--model", f"./{TEXT}")
    assert (code, shown in err) == (2, True)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_a_text_is_written_and_json_has_every_character(
    bytes_of: Any, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    pytest.importorskip("llguidance")
    given = "generate", "Which?", "--choice", FOX, "--max-new-tokens", "9", "--model", "demo"
    code, out, _ = bytes_of(encoding, *given)
    assert (code, out) == (0, f"{FOX}\n".encode(encoding, "replace"))
    code, out, _ = bytes_of(encoding, *given, "--json")
    assert (code, json.loads(out.decode(encoding))["text"]) == (0, FOX)
    assert (FOX.encode() in out) == (encoding == "utf-8")


def test_a_chat_goes_on_after_an_answer_that_cannot_be_shown(bytes_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "ask", lambda _, question: iter([Chunk((5,), f"{question}: {FOX}", 0)]))
    code, out, _ = bytes_of("cp1252", "chat", "--model", "demo", stdin="one\ntwo\n")
    assert (code, out) == (0, b"one: ?\ntwo: ?\n")
