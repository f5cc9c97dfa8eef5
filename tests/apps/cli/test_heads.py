"""The commands about heads that were trained here: listed, measured and removed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec import demo
from specdec.apps.cli.heads import verdict
from specdec.apps.pictures import training_report
from specdec.heads.head_facts import HeadFacts, Speeds, facts_of, write_facts
from specdec.heads.local_heads import folder_for, model_digest

SPEEDS = Speeds(without=1.5, with_head=1.6, alone=1.2, is_faster=True)
SETUP = "hf in float32 on a processor, 2 cores"


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

    def measure(*others: Any, **given: Any) -> tuple[None, str]:
        asked.update(given, given=others[2:])
        return None, SETUP

    monkeypatch.setattr(training_report, "measure_head", measure)
    monkeypatch.setattr(training_report, "speeds_of", lambda _: SPEEDS)
    name = folder.name[:8]
    code, out, _ = run("heads")
    assert code == 0
    assert out.startswith(f"{name}  a model, 2.50 tokens per step, trained on 20")
    assert "not measured, so auto doesn't draft with it: `specdec heads measure --model MODEL`" in out
    code, out, _ = run("heads", "measure", "--model", "demo", "--seconds", "7", "--numerics", "exact")
    assert (code, asked) == (0, {"backend": "auto", "numerics": "exact", "weights": "auto", "given": (folder, 7.0)})
    assert out.endswith(f"without, by {SETUP}: it drafts with the head for this model there from now on\n")
    known = facts_of(folder)
    assert (known.model, known.speeds) == ("a model", {SETUP: SPEEDS})
    listed = run("heads")[1]
    assert f"auto drafts with it by {SETUP}: 1.60 times plain decoding's speed with it, 1.50 without, 1.20 by" in listed
    code, _, err = run("heads", "remove", "nothing")
    assert (code, err) == (2, f"error: no head is called nothing: there are {name}\n")
    assert folder.exists()
    assert run("heads", "remove", name, name)[:2] == (0, f"removed {folder}\n")
    assert not folder.exists()
    code, _, err = run("heads", "measure", "--model", "demo")
    assert code == 2
    assert "no head was trained for demo on this machine: `specdec train head --model demo` trains one" in err
    folder.mkdir(parents=True)


def test_a_measurement_that_is_too_short_to_tell_says_so() -> None:
    uncertain = SPEEDS.model_copy(update={"is_faster": False})
    assert verdict(SETUP, uncertain).endswith("(specdec heads measure --seconds): auto goes on without the head")
    slower = uncertain.model_copy(update={"with_head": 1.4})
    assert verdict(SETUP, slower) == (
        "auto decodes 1.40 times as fast as plain decoding with the head and 1.50 times without, by "
        f"{SETUP}: auto goes on without the head"
    )


def test_text_without_a_head_is_listed_and_removed(run: Any, folder: Path) -> None:
    for file in ("config.json", "model.safetensors", "facts.json"):
        (folder / file).unlink(missing_ok=True)
    (folder / "text.npz").write_bytes(bytes(2**20))
    assert run("heads")[1] == f"{folder.name[:8]}  unknown model, text without a head, 1 MB\n"
    assert run("heads", "remove", folder.name)[0] == 0
    assert not folder.exists()
    folder.mkdir(parents=True)


def test_a_folder_that_cannot_be_removed_is_reported(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    code, _, err = run("heads", "remove", folder.name)
    monkeypatch.undo()
    assert (code, err) == (2, f"error: {folder} can't be removed: Permission denied\n")


def test_a_name_that_two_heads_have_is_refused(run: Any, folder: Path) -> None:
    other = folder.with_name(folder.name[:6] + "f" * 26)
    shutil.copytree(folder, other)
    code, _, err = run("heads", "remove", folder.name[:6])
    assert code == 2
    assert f"more than one head is called {folder.name[:6]}: there are" in err
    assert folder.exists()
    assert other.exists()
