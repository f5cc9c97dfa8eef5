"""The file of durations has each test file's seconds, also where several processes run the tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SLOW = """
import time, pytest

@pytest.fixture(scope="module")
def made():
    time.sleep(0.3)

@pytest.mark.parametrize("number", [1, 2])
def test(made, number):
    time.sleep(0.2)
"""


@pytest.mark.parametrize("processes", [["-p", "no:xdist"], ["-n", "2", "--dist", "loadfile"]], ids=" ".join)
def test_seconds_of_each_file_are_written_and_others_kept(tmp_path: Path, processes: list[str]) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    for name in ("test_a.py", "test_not_run.py"):
        (tmp_path / name).write_text("def test():\n    pass\n")
    written = tmp_path / "durations.json"
    written.write_text('{"test_not_run.py": 7.0, "test_removed.py": 9.0, "test_slow.py": 5.0}')
    command = [sys.executable, "-m", "pytest", "-p", "tests.durations", "--durations-json", str(written), *processes]
    files = [str(tmp_path / name) for name in ("test_a.py", "test_slow.py")]
    subprocess.run([*command, f"--rootdir={tmp_path}", "-p", "no:cacheprovider", *files], cwd=ROOT, check=True)
    durations = json.loads(written.read_text())
    assert list(durations) == ["test_not_run.py", "test_slow.py", "test_a.py"]
    assert durations["test_not_run.py"] == 7.0
    assert 0.7 <= durations["test_slow.py"] < 5.0  # the fixture, and both tests
