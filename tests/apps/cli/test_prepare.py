"""The command that prepares a model."""

from pathlib import Path
from typing import Any

import pytest


def test_a_model_is_prepared_once(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = run("prepare")
    assert (code, err) == (0, "")
    assert out.startswith("demo is prepared: ")
    (path,) = (tmp_path / "specdec" / "successors").iterdir()
    written = path.stat().st_mtime_ns
    assert run("prepare")[0] == 0
    assert path.stat().st_mtime_ns == written


def test_a_folder_that_cant_be_written_to_is_wrong_usage(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specdec").write_text("a file in the folder's place")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = run("prepare")
    assert (code, out) == (2, "")
    assert err.startswith("error: the likely successors of this model's tokens can't be saved: ")
    assert err.count("\n") == 1
