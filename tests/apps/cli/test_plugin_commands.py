"""Commands of plug-ins: listed and run as specdec's own, whose names they can't take; one that can't be imported."""

from typing import Annotated, Any

import pytest
import typer

from tests.support.entry_points import FakeEntryPoint


def sing(times: Annotated[int, typer.Option(help="number of verses")] = 1) -> None:
    """Sing a song of any length."""
    typer.echo("la" * times)


def missing() -> object:
    raise ImportError("no module named lute")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {"sing": lambda: sing, "dance": missing, "generate": lambda: sing}
    entries = [FakeEntryPoint("swift-dist", load, name) for name, load in commands.items()]
    monkeypatch.setattr(
        "specdec.plugins.names.entry_points", lambda group: entries if group == "specdec.commands" else []
    )


def test_it_is_listed_after_specdecs_own_and_runs(run: Any) -> None:
    listed = [line.split() for line in run("--help")[1].partition("Commands:")[2].splitlines() if line]
    assert [line[0] for line in listed[-3:]] == ["train", "dance", "sing"]
    assert listed[-1][1:] == ["Sing", "a", "song", "of", "any", "length."]
    assert run("sing", "--times", "3") == (0, "lalala\n", "")
    for option in ("-h", "--help"):
        assert "number of verses" in run("sing", option)[1]
    assert run("sing", "--version")[1].startswith("specdec ")
    code, _, err = run("sing", "--times", "many")
    assert (code, err) == (2, "error: --times 'many': give a whole number\n")


def test_a_name_of_specdecs_own_stays_its_own(run: Any) -> None:
    assert run("--help")[1].count("\n  generate ") == 1
    assert "Sing" not in run("generate", "--help")[1]


@pytest.mark.parametrize("arguments", [[], ["a/file", "--any", "option"]])
def test_one_that_can_not_be_imported_is_refused_with_the_reason(run: Any, arguments: list[str]) -> None:
    fault = "swift-dist is installed but broken: ImportError: no module named lute"
    assert run("dance", *arguments) == (2, "", f"error: {fault}\n")
    assert "swift-dist is installed but broken" in " ".join(run("--help")[1].split())


def test_a_misspelt_one_is_suggested(run: Any) -> None:
    code, _, err = run("sng")
    assert code == 2
    assert "sing" in err


def test_one_of_the_repository_that_is_not_installed_is_refused_with_the_remedy(run: Any) -> None:
    code, out, err = run("index", "src", "--output", "my.index")
    remedy = "index is a plug-in that isn't installed: pip install ./plugins/specdec-datastore, in a copy of"
    assert (code, out) == (2, "")
    assert err.startswith(f"error: unknown command 'index': {remedy}")
    assert err.count("\n") == 1
