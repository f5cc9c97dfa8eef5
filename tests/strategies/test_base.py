"""Mistakes of a strategy's author that show when it is bound, told in a line."""

from collections.abc import Callable
from typing import Any

import pytest

from specdec import Drafter, Generator, Host, Nodes, PluginError, Proposer, Request, ToyModel, What
from specdec.apps.cli.model_choice import ModelChoice
from specdec.apps.comparison.options import ComparisonOptions
from specdec.apps.comparison.session import open_by_name
from specdec.strategies.signals import Hidden, TopK
from tests.support import families


class Bound(Proposer):
    """A strategy whose declarations and engine are whatever it is given."""

    wanted: Any = frozenset()
    make: Callable[[Any, Host], Any] = Proposer.bind

    def wants(self) -> Any:
        return self.wanted

    def bind(self, host: Host) -> Any:
        return self.make(self, host)

    def start(self, request: Request) -> Drafter:
        raise NotImplementedError


def keeping_a_table(proposer: Any, host: Host) -> Any:
    proposer.table = {}


@pytest.mark.parametrize(
    ("proposer", "fault"),
    [
        (Bound(make=lambda *_: None), "proposer Bound: bind returned None, which is not an Engine"),
        (Bound(make=lambda *_: Drafter), "proposer Bound: bind returned <class 'specdec.strategies.base.Drafter'>, wh"),
        (Bound(make=keeping_a_table), "binding proposer Bound failed with ValidationError: table: Instance is frozen"),
        (Bound(wanted=What.DRAW), "binding proposer Bound failed with TypeError: 'What' object is not iterable"),
        (Bound(wanted=[Nodes.ALL]), "proposer Bound: wants returned <Nodes.ALL: 'all'>, which is not a pair such as ("),
        (Bound(wanted=(Nodes.ALL, What.DRAW)), "which is not a pair such as (Nodes.PATH, What.ARGMAX)"),
        (Bound(wanted=[(What.DRAW, Nodes.ALL)]), "which is not a pair such as (Nodes.PATH, What.ARGMAX)"),
        (Bound(wanted=[(Nodes.ALL, TopK(0))]), "which is not a pair such as (Nodes.PATH, What.ARGMAX) or (Nodes.ALL, "),
    ],
)
def test_a_strategy_that_is_bound_to_something_else_is_refused_when_the_generator_is_made(
    proposer: Proposer, fault: str
) -> None:
    with pytest.raises(PluginError) as caught:
        Generator(ToyModel.random(), proposer=proposer)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


class Unreadable(Proposer):
    def check_files(self) -> None:
        raise OSError("no such device")


@pytest.mark.parametrize(
    "load",
    [
        lambda proposer: Generator("model", proposer=proposer),
        lambda proposer: open_by_name("model", None, {"mine": proposer}, ComparisonOptions.make({})),
        lambda proposer: ModelChoice("model").load(proposer),
    ],
)
def test_an_error_in_a_check_of_files_names_the_strategy(load: Callable[[Proposer], object]) -> None:
    fault = "checking the files of proposer Unreadable failed with OSError: no such device"
    with pytest.raises(PluginError, match=fault):
        load(Unreadable())


def test_declarations_may_come_in_any_collection() -> None:
    Generator(ToyModel.random(), proposer=Bound(wanted=[(Nodes.ALL, What.DRAW), (Nodes.LAST, What.ARGMAX)]))


@pytest.mark.parametrize("layer", [3, 99, -4])
def test_hidden_states_of_layers_that_the_model_does_not_have_are_refused_when_it_is_bound(layer: int) -> None:
    model = families.make("LlamaConfig", families.SMALL)
    Generator(model, proposer=Bound(wanted=[(Nodes.ALL, Hidden((0, 2))), (Nodes.PROMPT, Hidden((-1, -3)))]))
    with pytest.raises(PluginError, match=rf"Hidden\(layers=\(0, {layer}\)\).*layers 0 to 2, or -3 to -1"):
        Generator(model, proposer=Bound(wanted=[(Nodes.ALL, Hidden((0, layer)))]))
