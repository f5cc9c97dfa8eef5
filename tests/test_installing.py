"""``make`` installs packages: it says what pip is doing on one line of a terminal, and lets Python cache bytecode."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "install.py"


@pytest.fixture(name="install", scope="module")
def _install() -> Any:
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Collecting torch==2.13.0\n", "collecting torch"),
        ("Collecting accelerate>=1.15 (from specdec==0.1.0)\n", "collecting accelerate"),
        (
            "  Downloading https://host/whl/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (190.9 MB)\n",
            "downloading torch, 190.9 MB",
        ),
        ("  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)\n", "downloading numpy, 16.9 MB"),
        ("Processing /wheels/sympy-1.14.0-py3-none-any.whl\n", "processing sympy"),
        ("Building wheels for collected packages: specdec\n", "building wheels"),
        ("  Preparing editable metadata (pyproject.toml): started\n", "preparing metadata"),
        ("Installing collected packages: mpmath, torch\n", "unpacking"),
        ("Requirement already satisfied: rich in ./.venv\n", ""),
        ("WARNING: Retrying\n", ""),
        ("\n", ""),
    ],
)
def test_pips_lines_become_a_few_words(install: Any, line: str, said: str) -> None:
    assert install.doing(line) == said


def test_where_pip_fails_its_reason_and_its_exit_code_are_passed_on(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), sys.executable, "a package", "--no-index", "--find-links", str(tmp_path)]
    done = subprocess.run([*command, "no-such-package"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("installing a package\n")
    assert "can't install a package, " in done.stdout
    assert "No matching distribution found for no-such-package" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("make") is None, reason="make isn't installed")
def test_what_make_starts_may_cache_bytecode_since_pip_compiles_none() -> None:
    command = ["make", "--silent", "--eval", "shown:\n\t@env", "shown"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=SCRIPT.parents[1], env=environment, capture_output=True, text=True, check=True)
    assert "PYTHONUTF8=1" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout
