"""The cache folder is the user's, by the rules of freedesktop.org."""

from pathlib import Path

import pytest

from specdec.machine.cache_folder import cache_folder


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "specdec"


@pytest.mark.parametrize("given", [None, "", "relative/folder"])
def test_without_a_usable_word_from_the_environment_the_cache_is_at_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder() == tmp_path / ".cache" / "specdec"
