"""The page about the server: its commands and its code run against a server that its first command starts."""

import copy
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from specdec import Generator
from specdec.apps.cli import app
from tests.apps.serving.serving import serving
from tests.support.media_models import hum, llava, noise, png, wav
from tests.support.whisper import whisper
from tests.test_readme import ROOT, blocks

PORT = "8000"
OTHERS = {"llava": llava, "whisper-small": whisper}  # models that aren't the page's first one


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
            for block in (block for block in blocks("server.md", "py") if not any(name in block for name in OTHERS)):
                exec(compile(block.replace(PORT, port), "server.md", "exec"), {})
            assert "speculation" in capsys.readouterr().out
            health = json.loads(container()["HEALTHCHECK"].partition("CMD ")[2])
            assert health[0] == "python"
            subprocess.run([sys.executable, *(each.replace(PORT, port) for each in health[1:])], timeout=60, check=True)
            assert len(others) == 2
            for command in others:
                few = command.replace("--num-requests 8", "--num-requests 2")  # which come at given times
                result = CliRunner().invoke(app, shlex.split(few.replace(PORT, port)))
                assert result.exit_code == 0, result.output
            assert (tmp_path / "load.svg").exists()
        finally:
            started.terminate()
            assert started.wait(60) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_the_code_for_images_and_recordings_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("receipt.png").write_bytes(png(noise(1)))
    Path("talk.wav").write_bytes(wav(hum(1, 3.0)))
    (block,) = (block for block in blocks("server.md", "py") if name in block)
    with serving(Generator(*copy.deepcopy(OTHERS[name]()), proposer="prompt_lookup"), name=name) as running:
        exec(compile(block.replace(f"localhost:{PORT}", running.url.rpartition("/")[2]), "server.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_every_option_that_the_page_names_exists() -> None:
    import re

    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    named = {*re.findall(r"--[a-z][a-z-]+", page)}
    known = "".join(CliRunner().invoke(app, [command, "--help"]).output for command in ("serve", "bench-serve"))
    assert named <= {*re.findall(r"--[a-z][a-z-]+", known)}


def container() -> dict[str, str]:
    """The instructions of the page's Dockerfile; there is no docker here, so what they run is tried by itself."""
    (lines,) = blocks("server.md", "dockerfile")
    return dict(line.split(" ", 1) for line in lines.splitlines())


def test_the_containers_command_has_options_that_exist() -> None:
    program, *arguments = json.loads(container()["ENTRYPOINT"]) + json.loads(container()["CMD"])
    assert program == "specdec"
    command: Any = get_command(app)
    name, serve, rest = command.resolve_command(click.Context(command), arguments)
    parsed = serve.make_context(name, rest)
    assert parsed.params["host"] == "0.0.0.0"
    assert str(parsed.params["port"]) == PORT


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd isn't installed")
    (unit,) = blocks("server.md", "ini")
    program = "/opt/specdec/bin/specdec"
    assert program in unit
    path = tmp_path / "specdec.service"
    path.write_text(unit.replace(program, sys.executable), encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert not [line for line in checked.stderr.splitlines() if "specdec.service" in line]
