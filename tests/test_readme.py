"""The README runs: its Python in order, its commands as they stand, and its example is the plug-in's code."""

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_session_runs_and_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "readme"}
    session, *rest = blocks("python")
    exec(compile(session, "README.md", "exec"), names)
    assert capsys.readouterr().out == blocks("text")[0]
    for block in rest:
        exec(compile(block, "README.md", "exec"), names)


def test_the_example_is_the_plug_ins_code_and_is_under_forty_lines() -> None:
    example = next(block for block in blocks("python") if "SuccessorProposer(Proposer)" in block)
    plugin = (ROOT / "plugins/specdec-example/specdec_example.py").read_text(encoding="utf-8")
    assert without_docstrings(example) == without_docstrings(plugin)
    assert sum(bool(line.strip()) for line in example.splitlines()) < 40


def test_the_example_goes_on_to_wants_bind_and_the_check_for_plug_in_authors() -> None:
    further = next(block for block in blocks("python") if "(SuccessorProposer)" in block)
    for shown in (
        "def wants(self)",
        "def bind(self, host: Host) -> Engine:",
        "learns_across_requests",
        "\ncheck_proposer(",
    ):
        assert shown in further


def without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body.pop(0)
    return ast.unparse(tree)


# What keeps a command that measures for minutes from doing so here; of an option given twice, the last counts.
FEW = ["--max-new-tokens", "8", "--per-category", "1"]
SHORT = {"compare": [*FEW, "--repeats", "1"], "bench": FEW, "tune": [*FEW, "--minutes", "0.05"]}
PROMPTS = '{"prompt": "# heapq", "category": "code"}\n{"turns": ["What is bread?"], "category": "qa"}\n'


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("prompts.jsonl", "spec_bench.jsonl"):
        (tmp_path / name).write_text(PROMPTS)
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(("specdec", "echo"))]
    assert len(commands) >= 12
    if importlib.util.find_spec("specdec_openvino") is None:
        commands = [line for line in commands if "openvino" not in line]
    for line in commands:
        text, piped, command = line.rpartition(" | ")
        given = shlex.split(text)[1] if piped else None
        _, *arguments = shlex.split(command)
        result = CliRunner().invoke(app, [*arguments, *SHORT.get(arguments[0], [])], input=given)
        assert result.exit_code == 0, (line, result.output)
        assert result.output.strip()
    written = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "runs.jsonl", "trade-off.svg", "mask.svg", "trace.html"} <= written


def test_make_knows_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in README
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
