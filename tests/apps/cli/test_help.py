"""Help: each command says in one line what it does, and nothing is cut off in a narrow terminal."""

from importlib.metadata import version
from typing import Any

import pytest

import specdec
from specdec.apps.cli import app

NAMES = [
    command.callback.__name__.replace("_", "-") for command in app.registered_commands if command.callback is not None
]
COMMANDS = [*([name] for name in NAMES), ["train", "head"]]


@pytest.fixture(name="help_of")
def _help_of(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def help_of(*command: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", "80")
        code, out, _ = run(*command, "--help")
        assert code == 0
        lines: list[str] = out.splitlines()
        return lines

    return help_of


def test_each_command_has_a_whole_sentence_in_a_line_of_eighty_columns(help_of: Any) -> None:
    lines = help_of()
    listed = dict(line.strip().split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 :])
    assert [name for name in listed if name in {*NAMES, "train"}] == [*NAMES, "train"]
    for name, sentence in listed.items():
        assert sentence[0].isupper(), name
        assert sentence.endswith("."), name
        assert not sentence.endswith(("...", "…")), name
        assert len(sentence.split()) >= 4, name


@pytest.mark.parametrize("command", [[], ["train"], *COMMANDS], ids=" ".join)
def test_no_line_of_help_is_cut_off_or_too_wide(help_of: Any, command: list[str]) -> None:
    lines = [line for line in help_of(*command) if not line.startswith("Usage: ")]
    assert [line for line in lines if line.endswith(("…", "...")) or len(line) > 80] == []


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_option_says_what_it_is_for(help_of: Any, command: list[str]) -> None:
    lines = help_of(*command)
    assert [line for line in lines if line.lstrip().startswith("--") and len(line.split()) < 2] == []


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_h_is_help_and_version_is_the_packages(run: Any, command: list[str]) -> None:
    code, out, err = run(*command, "--version")
    assert (code, out, err) == (0, f"specdec {version('specdec')}\n", "")
    assert (0, *run(*command, "--help")[1:]) == run(*command, "-h")
    assert "-h, --help" in run(*command, "-h")[1]


def test_the_version_is_written_once(run: Any) -> None:
    assert version("specdec") == specdec.__version__
    code, _, err = run("generate", "--version=1", "text")
    assert code == 2
    assert "--version" in err
