"""Names of the last version: whatever uses one is told in a line what is in its place."""

import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from specdec import DraftTree, Engine, Generator, PluginError, ToyModel
from specdec.plugins import registry
from specdec.renamed import RENAMED
from specdec.target import Target
from tests.scripted import Scripted


class Former(Scripted):
    """A strategy with a model of its own, which it drives as the last version's did."""

    drive: Any

    def bind(self, host: Any) -> Engine:
        self.drive(host.open(ToyModel.random()))
        return super().bind(host)


@pytest.mark.parametrize(
    ("drive", "said"),
    [
        (lambda target: target.prefill([1, 2]), "Target.prefill is now target.read_all(row, tokens), with row = targ"),
        (lambda target: target.open([1, 2], 9), "Target.open() is now row = target.open(capacity), which is empty, an"),
        (lambda target: target.forward([DraftTree(0)]), "now target.forward(target.compile({row: tree})), in place of"),
        (lambda target: target.keep([(0,)]), "Target.keep() is now target.keep(planned, {row: path})"),
        (lambda target: target.lay_out([DraftTree(0)], [1]), "Target.lay_out is now target.compile({row: tree})"),
        (lambda target: target.lengths[0], "Target.lengths is now row.length, of each row that target.open gave"),
    ],
)
def test_a_strategy_that_drives_a_model_as_before_is_told_how_it_is_done_now(
    drive: Callable[[Target], Any], said: str
) -> None:
    with pytest.raises(PluginError, match=r"^binding proposer Former failed with .* \(<lambda>, test_") as caught:
        Generator(ToyModel.random(), proposer=Former(drive=drive))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_that_does_so_while_it_drafts_is_told_too() -> None:
    def script(request: Any, budget: Any) -> Any:
        return Generator(ToyModel.random(), proposer="jacobi").open_target().prefill([1])  # type: ignore[attr-defined]

    with pytest.raises(PluginError, match=r"proposer Scripted failed with .*; Target\.prefill is now"):
        Generator(ToyModel.random(), proposer=Scripted(script=script)).generate([1], max_new_tokens=2)


@pytest.mark.parametrize("name", [name for name in RENAMED if name.startswith("specdec.")])
def test_a_package_that_imports_a_former_module_is_told_where_that_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SimpleNamespace(dist=SimpleNamespace(name="theirs"), load=lambda: import_module(name))
    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry])
    (fault,) = registry.load_plugins().broken
    assert fault.reason == f"ModuleNotFoundError: No module named '{name}'; {name} is now {RENAMED[name]}"
    assert all(find_spec(found) for found in re.findall(r"specdec\.[\w.]+(?<!hookimpl)\b", RENAMED[name]))


def test_the_former_way_to_drive_a_generators_model_names_the_present_one() -> None:
    with pytest.raises(AttributeError, match=r"Generator\.driver is now generator\.open_target\(\)"):
        Generator(ToyModel.random()).driver()


def test_other_mistakes_are_told_as_they_are() -> None:
    def mistaken(target: Target) -> None:
        target.no_such_thing()  # type: ignore[attr-defined]

    with pytest.raises(PluginError) as caught:
        Generator(ToyModel.random(), proposer=Former(drive=mistaken))
    assert "is now" not in str(caught.value)
