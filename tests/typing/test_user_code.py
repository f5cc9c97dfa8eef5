"""What a user writes passes mypy and pyright in their strict modes, without plug-ins: a file, and the guides' code.

pyright is here as basedpyright, whose wheel brings the checker along: pyright's own fetches it at its first run.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import specdec

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# In the order of a page, its blocks are one program; what a page imports of itself is the file that it has written.
OWN_IMPORT = re.compile(r"^from specdec_example import .*\n", re.MULTILINE)


WRONG = """
from specdec import LookaheadProposer, ToyModel, Generator
LookaheadProposer(n=5)
Generator(ToyModel.random()).generate("text").tokens
"""


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's file, each page's Python, and a file with two mistakes."""
    folder = tmp_path_factory.mktemp("code")
    shutil.copy(HERE / "user_code.py", folder)
    (folder / "wrong.py").write_text(WRONG)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        blocks = re.findall(r"^```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        if blocks:
            name = f"page_{page.stem.lower().replace('-', '_')}.py"
            (folder / name).write_text(OWN_IMPORT.sub("", "\n".join(blocks)), encoding="utf-8")
    assert len(list(folder.iterdir())) >= 10
    return folder


def run(*command: str | Path) -> str:
    """What a checker prints, and its exit code before it."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return f"{done.returncode}: {done.stdout}{done.stderr}"


def mypy(folder: Path) -> str:
    config = folder / "mypy.ini"
    config.write_text((HERE / "mypy.ini").read_text().replace("$MYPY_CONFIG_FILE_DIR/../..", str(ROOT)))
    common = "--config-file", config, "--cache-dir", folder / "cache", "--python-executable", sys.executable
    return run(sys.executable, "-m", "mypy", *common, *sorted(folder.glob("*.py")))


def pyright(folder: Path) -> str:
    config = json.loads((HERE / "pyrightconfig.json").read_text())
    config |= {"extraPaths": [str(ROOT)], "reportDuplicateImport": False}  # a page's blocks each import what they need
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    return run(sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", folder)


needs_mypy = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy isn't installed")
needs_pyright = pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright isn't installed")


def faults(found: str, *others: str) -> list[str]:
    """The lines about errors in files other than ``wrong.py`` and others."""
    left_out = [f"{name}:" for name in ("wrong.py", *others)]
    return [line for line in found.splitlines() if " error: " in line and not any(name in line for name in left_out)]


@needs_mypy
def test_mypy_passes_what_users_write_and_finds_what_is_wrong(folder: Path) -> None:
    found = mypy(folder)
    assert faults(found) == []
    assert 'Unexpected keyword argument "n"' in found
    assert '"Result" has no attribute "tokens"' in found


@pytest.mark.nightly  # it reads torch and transformers, which takes five times as long as mypy's check
@needs_pyright
def test_pyright_passes_what_users_write_and_finds_what_is_wrong(folder: Path) -> None:
    found = pyright(folder)
    assert faults(found, "page_inputs.py") == []  # it loads models with transformers, whose types are partly unknown
    assert 'No parameter named "n"' in found
    assert 'Cannot access attribute "tokens" for class "Result"' in found


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(specdec.__file__).parent / "py.typed").is_file()
    packages = {path.parent for path in ROOT.glob("plugins/*/specdec_*/__init__.py")}
    assert len(packages) >= 3
    assert [path for path in packages if not (path / "py.typed").is_file()] == []


def test_defaults_are_written_so_that_type_checkers_see_them() -> None:
    """By ``Field(default=…)``: with a positional default a field is required to mypy and pyright."""
    schemas = ROOT / "specdec/apps/serving/schemas.py"  # the bodies of HTTP requests, which nobody makes by hand
    files = {*ROOT.glob("specdec/**/*.py"), *ROOT.glob("plugins/**/*.py")} - {schemas}
    fields = [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field"
    ]
    assert len(fields) > 60
    assert [place for place, node in fields if node.args] == []
