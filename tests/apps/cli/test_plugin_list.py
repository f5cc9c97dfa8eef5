"""``specdec plugins``: each plug-in with what it is, and its options as they are written on a command line."""

import json
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field

from specdec import Drafter, Proposer, Request, hookimpl
from specdec.plugins.options import fields_of
from specdec.plugins.registry import load_plugins
from tests.support.entry_points import FakeEntryPoint


class Colour(Enum):
    RED = "red"


class Theirs(Proposer):
    """Drafts as a third party likes.

    And more that the list leaves out.
    """

    needed: int
    folder: Path = Path("a/b")
    colour: Colour = Colour.RED
    sizes: tuple[int, ...] = (1, 2)
    files: list[Path] = [Path("c")]  # noqa: RUF012 - pydantic copies it
    made: dict[str, int] = Field(default_factory=lambda: 1 // 0, description="made anew each time")
    word: str = "two words"
    nothing: int | None = None
    flag: bool = True

    def start(self, request: Request) -> Drafter:
        raise NotImplementedError


class Bare(Theirs):
    word: str = "x"


@hookimpl
def specdec_proposers() -> dict[str, type[Proposer]]:
    return {"theirs": Theirs, "bare": Bare}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    entry = FakeEntryPoint("their-dist", lambda: SimpleNamespace(specdec_proposers=specdec_proposers))
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [entry])


def listed(out: str) -> dict[str, list[str]]:
    """The lines below each plug-in's first, by its name."""
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        if not line.startswith(" "):
            lines = found[line.split()[1]] = []
        else:
            lines.append(" ".join(line.split()))
    return found


def test_options_are_written_as_on_a_command_line(run: Any) -> None:
    code, out, err = run("plugins")
    assert (code, err) == (0, "")
    assert listed(out)["theirs"] == [
        "Drafts as a third party likes.",
        "needed (required)",
        "folder=a/b",
        "colour=red",
        "sizes=[1, 2]",
        'files=["c"]',
        "made=(computed) made anew each time",
        "word=two words",
        "nothing=None",
        "flag=True",
    ]
    assert "N=5 n-gram size, the current token included" in listed(out)["lookahead"]
    for spelled in ("Undefined", "Path(", "Colour.", "<class", "``"):
        assert spelled not in out


def test_each_built_in_plug_in_and_option_has_a_description(run: Any) -> None:
    entries = [json.loads(line) for line in run("plugins", "--json")[1].splitlines()]
    ours = [entry for entry in entries if entry["from"] == "specdec"]
    assert len(ours) > 15
    assert [entry["name"] for entry in ours if not entry["description"]] == []
    silent = [
        f"{entry['name']}:{name}"
        for entry in ours
        for name, option in entry["options"].items()
        if not option["description"]
    ]
    assert silent == []


def test_what_is_listed_is_taken(run: Any) -> None:
    registry = load_plugins()
    for line in run("plugins", "--json")[1].splitlines():
        entry = json.loads(line)
        cls = registry.find(entry["kind"], entry["name"])
        if (
            entry["from"] != "specdec"
            or entry["kind"] in ("backends", "constraints")  # most constraints need a definition
            or entry["name"] in ("draft_model", "dflash", "dspark", "eagle", "eagle3", "medusa", "p_eagle")
            or not fields_of(cls)
        ):
            continue
        for name, option in entry["options"].items():
            made = registry.make(entry["kind"], f"{entry['name']}:{name}={option['default']}")
            assert getattr(made, name) == fields_of(cls)[name].default
