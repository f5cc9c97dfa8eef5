"""The page about the server: its commands and its code run against a server that its first command starts."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from tests.test_readme import ROOT, blocks

PORT = "8000"


def commands() -> list[str]:
    lines = [line for block in blocks("server.md", "console") for line in block.splitlines()]
    return [line.removeprefix("$ specdec ") for line in lines if line.startswith("$ specdec")]


def test_the_pages_commands_and_code_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, on_engine, *others = commands()
    assert PORT in first
    assert on_engine == f"{first} --backend openvino"  # an option of a plug-in that isn't installed here
    arguments = shlex.split(first.replace(PORT, "0"))
    assert arguments[0] == "serve"
    program = [sys.executable, "-m", "specdec", *arguments, "--threads", "1"]  # others test beside it
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        line = next(line for line in started.stderr if "http://" in line)
        port = line.strip().rpartition(":")[2]
        try:
            for block in blocks("server.md", "py"):
                exec(compile(block.replace(PORT, port), "server.md", "exec"), {})
            assert "speculation" in capsys.readouterr().out
            assert len(others) == 2
            for command in others:
                result = CliRunner().invoke(app, shlex.split(command.replace(PORT, port)))
                assert result.exit_code == 0, result.output
            assert (tmp_path / "load.svg").exists()
        finally:
            started.terminate()
            assert started.wait(60) == 0


def test_every_option_that_the_page_names_exists() -> None:
    import re

    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    named = {*re.findall(r"--[a-z][a-z-]+", page)}
    known = "".join(CliRunner().invoke(app, [command, "--help"]).output for command in ("serve", "bench-serve"))
    assert named <= {*re.findall(r"--[a-z][a-z-]+", known)}
