"""A cache folder for the whole run, and the command line in this process."""

import io
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from specdec.apps.cli import main

settings.register_profile("specdec", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("specdec")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A command: exit code, standard output, standard error without the line about the default model."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specdec", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, re.sub(r"(\x1b\[2m)?model: the built-in toy .*\n", "", err)

    return run
