"""README and pages: their Python runs in order, their commands run as written, and their links lead somewhere."""

import ast
import importlib.util
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specdec import demo
from specdec.apps.cli import app
from specdec.testing import check_mask
from tests.support import families
from tests.support.brief_costs import measure_briefly
from tests.support.documented_media import MODELS, with_stand_ins

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)```", PAGES[page], flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(name="runnable")
def _runnable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Replaces SmolLM2 in code by the built-in model, which is smaller, and texts by short ones.

    ``test_real_model.py`` runs SmolLM2; the plug-in's tests check its mask with the built-in model.
    """
    measure_briefly(monkeypatch)
    small = families.make(*families.TREES["llama"])
    monkeypatch.setattr("specdec.testing.check_mask", partial(check_mask, model=small))
    assert 'Generator("smollm2")' in PAGES["README.md"]

    def run_in(code: str) -> str:
        code = code.replace('Generator("smollm2")', 'Generator("demo")')
        if "constraint" not in code:  # texts that meet one are as long as that takes
            code = code.replace("repeats=1,", "repeats=1, max_new_tokens=8,")
            code = re.sub(r"""(max_new_tokens("?: |=))\d+""", r"\g<1>8", code)
        if any(name in code for name in MODELS):
            monkeypatch.chdir(tmp_path)
            return with_stand_ins(code, tmp_path)
        return code

    return run_in


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in PAGES[page]])
def test_the_code_of_a_page_runs_in_order(page: str, runnable: Callable[[str], str]) -> None:
    if "specdec.constraints" in PAGES[page]:
        pytest.importorskip("llguidance")
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(runnable(block), page, "exec"), names)
        for name in [name for name in names if name.startswith("test_")]:
            names.pop(name)()


def test_the_first_code_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("index.md", "python")[0], "index.md", "exec"), {})
    assert capsys.readouterr().out == blocks("index.md", "text")[0]


def test_the_example_is_the_plug_ins_code_and_is_under_forty_lines() -> None:
    example = blocks("plugin.md", "python")[0]
    plugin = (ROOT / "plugins/specdec-example/specdec_example.py").read_text(encoding="utf-8")
    assert without_docstrings(example) == without_docstrings(plugin)
    assert sum(bool(line.strip()) for line in example.splitlines()) < 40
    short = next(block for block in blocks("README.md", "python") if "(Proposer)" in block)
    strategy = short[short.index("class ") : short.index("repeating =")]
    assert sum(bool(line.strip()) for line in strategy.splitlines()) <= 20


def test_the_attention_is_the_plug_ins_code() -> None:
    plugin = (ROOT / "plugins/specdec-example/specdec_example_attention.py").read_text(encoding="utf-8")
    assert without_docstrings(blocks("attention.md", "python")[0]) == without_docstrings(plugin)


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


# Options that shorten commands which measure for minutes: the last of two values counts.
FEW = ["--max-new-tokens", "4", "--category", "code", "--per-category", "1"]
SHORT = {"compare": [*FEW, "--repeats", "1"], "tune": [*FEW, "--minutes", "0.001"]}
SHORT |= {name: ["--max-new-tokens", "8"] for name in ("audit", "generate", "mask", "race", "trace")}
PROMPTS = '{"prompt": "# heapq", "category": "code"}\n{"turns": ["What is bread?"], "category": "qa"}\n'


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    wanted = [line for line in lines if line.startswith(("specdec", "echo"))]
    if importlib.util.find_spec("llguidance") is None:
        wanted = [line for line in wanted if "--choice" not in line and "--regex" not in line]
    if importlib.util.find_spec("specdec_openvino") is None:
        wanted = [line for line in wanted if "openvino" not in line]
    return wanted


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_run(
    page: str, built_in: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "load", lambda: built_in)
    measure_briefly(monkeypatch)
    for name in ("prompts.jsonl", "spec_bench.jsonl"):
        (tmp_path / name).write_text(PROMPTS)
    for line in commands(page):
        text, piped, command = line.rpartition(" | ")
        given = shlex.split(text)[1] if piped else None
        command = with_stand_ins(command.replace("--model smollm2", "--model demo"), tmp_path)  # it may not be there
        _, *arguments = shlex.split(command)
        result = CliRunner().invoke(app, [*arguments, *SHORT.get(arguments[0], [])], input=given)
        assert result.exit_code == 0, (line, result.output)
        assert result.output.strip()
        written = {path.name for path in tmp_path.iterdir()}
        assert {name for name in arguments if name.endswith((".html", ".svg", ".jsonl"))} <= written


def test_make_knows_the_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test", "docs"):
        assert f"make {command}" in PAGES["README.md"]
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    folder = ROOT if page == "README.md" else ROOT / "docs"
    links = re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', PAGES[page])
    for target in (inline or source for inline, source in links):
        path, _, anchor = target.partition("#")
        file = folder / path if path else folder / page
        assert file.exists(), target
        assert not anchor or anchor in headings(file.read_text(encoding="utf-8")), target


def headings(text: str) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
