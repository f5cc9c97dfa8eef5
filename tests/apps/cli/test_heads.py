"""The commands about heads that were trained here: listed, measured and removed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec import demo
from specdec.apps.pictures import training_report
from specdec.heads.head_facts import HeadFacts, Speeds, facts_of, write_facts
from specdec.heads.local_heads import folder_for, model_digest

SPEEDS = Speeds(without=1.5, with_head=1.6, alone=1.2)


@pytest.fixture(name="folder")
def _folder() -> Iterator[Path]:
    """The built-in model's head where its training would have put it."""
    place = folder_for(model_digest(demo.load()[0]))
    shutil.copytree(demo.head_folder(), place)
    write_facts(place, HeadFacts(model="a model", num_answer_tokens=1000, tokens_per_step=2.5))
    yield place
    shutil.rmtree(place.parent)


def test_without_heads_the_list_says_how_one_is_trained(run: Any) -> None:
    assert run("heads")[:2] == (
        0,
        "no head was trained on this machine: `specdec train head --model MODEL` trains one\n",
    )


def test_heads_are_listed_measured_and_removed(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, Any]()
    monkeypatch.setattr(training_report, "measure_head", lambda *others, **given: asked.update(given, given=others[2:]))
    monkeypatch.setattr(training_report, "speeds_of", lambda _: SPEEDS)
    name = folder.name[:8]
    code, out, _ = run("heads")
    assert code == 0
    assert out.startswith(f"{name}  a model, 2.50 tokens per step, trained on 20")
    assert "not measured, so auto doesn't draft with it: `specdec heads measure --model MODEL`" in out
    code, out, _ = run("heads", "measure", "--model", "demo", "--seconds", "7")
    assert (code, asked) == (0, {"backend": "auto", "given": (folder, 7.0)})
    assert out.endswith("measured on this machine: it drafts with the head for this model from now on\n")
    known = facts_of(folder)
    assert known is not None
    assert known.speeds == SPEEDS
    assert "auto drafts with it: 1.60 times plain decoding's speed with it, 1.50 without, 1.20 by it" in run("heads")[1]
    code, _, err = run("heads", "remove", "nothing")
    assert (code, err) == (2, f"error: no head is called nothing: there are {name}\n")
    assert folder.exists()
    assert run("heads", "remove", name)[:2] == (0, f"removed {folder}\n")
    assert not folder.exists()
    code, _, err = run("heads", "measure", "--model", "demo")
    assert code == 2
    assert "no head was trained for demo on this machine: `specdec train head --model demo` trains one" in err
    folder.mkdir(parents=True)


def test_a_name_that_two_heads_have_is_refused(run: Any, folder: Path) -> None:
    other = folder.with_name(folder.name[:6] + "f" * 26)
    shutil.copytree(folder, other)
    code, _, err = run("heads", "remove", folder.name[:6])
    assert code == 2
    assert f"more than one head is called {folder.name[:6]}: there are" in err
    assert folder.exists()
    assert other.exists()
