"""The command line in this process, with the built-in model loaded once."""

import io
import re
import sys
from typing import Any

import pytest

from specdec import demo
from specdec.apps import cli
from tests.support.brief_costs import measure_briefly


@pytest.fixture(autouse=True)
def _loaded_once(built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "load", lambda: built_in)
    measure_briefly(monkeypatch)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="run")
def _run(printed: Any) -> Any:
    """A command: exit code, standard output, standard error without the line about the default model."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        code, out, err = printed(*arguments, stdin=stdin)
        return code, out, re.sub(r"(\x1b\[2m)?model: the built-in toy .*\n", "", err)

    return run


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A command: exit code, standard output, standard error."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specdec", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            cli.main()
        return (left.value.code, *capsys.readouterr())  # type: ignore[return-value]

    return run
