"""Findings in the cache folder: found out once for a model, by any process, and again for any other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec import Generator
from specdec.runtime.probes import examination
from specdec.runtime.probes.findings import recalled
from tests.support.model_changes import CHANGES, tiny


@dataclass(frozen=True, slots=True)
class Finding:
    number: float
    names: tuple[str, ...]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "specdec" / "findings"


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Finding:
        self.count += 1
        return Finding(0.1 + self.count, ("é", "b"))


def test_a_finding_is_found_once_by_models_that_are_the_same() -> None:
    find = Counting()
    first, again = tiny(), tiny()
    found = [recalled(model, "q", Finding, find) for model in (first, first, again)]
    assert find.count == 1
    assert found == [found[0]] * 3
    recalled(again, "another question", Finding, find)
    assert find.count == 2
    assert recalled(tiny(), "q", Finding, find) == found[0]


def test_a_finding_that_is_unclear_serves_its_own_process_alone() -> None:
    find, model = Counting(), tiny()
    for _ in range(2):
        recalled(model, "q", Finding, find, keeps=lambda finding: finding.number > 2)
    assert find.count == 1
    for _ in range(2):
        recalled(tiny(), "q", Finding, find, keeps=lambda finding: finding.number > 2)
    assert find.count == 2


@pytest.mark.parametrize("name", ["one number", "a hook", "an attribute"])
def test_a_changed_model_is_examined_anew(name: str) -> None:
    find, model = Counting(), tiny()
    recalled(model, "q", Finding, find)
    with torch.no_grad():
        CHANGES[name](model)
    recalled(model, "q", Finding, find)
    assert find.count == 2


def test_threads_are_part_of_the_question() -> None:
    model, find, threads = tiny(), Counting(), torch.get_num_threads()
    recalled(model, "q", Finding, find)
    try:
        torch.set_num_threads(threads + 1)
        recalled(model, "q", Finding, find)
    finally:
        torch.set_num_threads(threads)
    assert find.count == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _text: "",
        lambda _text: "[]",
        lambda text: text.replace("1.1", "2.1"),
        lambda text: text.replace("number", "numbr"),
        lambda _text: '{"digest": "0", "value": {"answers": {"q": "1"}}}',
    ],
    ids=["cut", "empty", "foreign", "a digit", "a name", "made up"],
)
def test_a_damaged_file_is_made_anew(folder: Path, damage: Any) -> None:
    find = Counting()
    recalled(tiny(), "q", Finding, find)
    (path,) = folder.glob("*.json")
    path.write_text(damage(path.read_text()))
    assert recalled(tiny(), "q", Finding, find).number == 2.1
    assert recalled(tiny(), "q", Finding, find).number == 2.1
    assert find.count == 2


def test_a_folder_that_cant_be_written_to_costs_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    find = Counting()
    recalled(tiny(), "q", Finding, find)
    recalled(tiny(), "q", Finding, find)
    assert find.count == 2


def test_a_second_generator_of_a_model_makes_no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Generator(tiny(), proposer="autoregressive")
    monkeypatch.setattr(examination, "probe", _refuse)
    monkeypatch.setattr(examination, "probe_products", _refuse)
    second = Generator(tiny(), proposer="autoregressive")
    assert str(second.numerics) == str(first.numerics)
    assert second.shapes == first.shapes
    with pytest.raises(AssertionError, match="probed"):
        Generator(tiny().double(), proposer="autoregressive")


def _refuse(*given: object, **named: object) -> None:
    raise AssertionError("it was probed")
