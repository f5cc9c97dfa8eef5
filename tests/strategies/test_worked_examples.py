"""Each strategy's docstring has an example of what it drafts, and the example is right."""

import doctest
from importlib import import_module

import pytest

from tests.support.proposers import our_proposers

MODULES = (
    "specdec.strategies.autoregressive",
    "specdec.strategies.draft_model.early_exit",
    "specdec.strategies.draft_model.proposer",
    "specdec.strategies.draft_model.vocabulary",
    "specdec.heads.strategies.block",
    "specdec.heads.strategies.eagle",
    "specdec.heads.strategies.eagle3",
    "specdec.strategies.jacobi",
    "specdec.strategies.lookahead",
    "specdec.heads.strategies.levels",
    "specdec.heads.strategies.medusa",
    "specdec.heads.strategies.mtp",
    "specdec.heads.strategies.p_eagle",
    "specdec.strategies.prompt_lookup",
    "specdec.strategies.size",
    "specdec.strategies.sources.grammar",
    "specdec.strategies.sources.recycling",
    "specdec.strategies.sources.reference",
    "specdec.strategies.sources.suffix",
)
SIZED_BY_COSTS = {"auto"}  # what it drafts depends on the machine


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_examples_print_what_they_show(name: str) -> None:
    results = doctest.testmod(import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_every_strategy_has_an_example_that_is_run() -> None:
    strategies = {name: cls for name, cls in our_proposers().items() if name not in SIZED_BY_COSTS}
    assert len(strategies) >= 8
    assert [name for name, cls in strategies.items() if ">>> " not in (cls.__doc__ or "")] == []
    assert {cls.__module__ for cls in strategies.values()} <= set(MODULES)
