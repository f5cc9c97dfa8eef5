"""Strategies by name, those with files by the operator's alias, and the same object for the same name."""

import pytest

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.strategy_aliases import StrategyAliases
from specdec.plugins.registry import load_plugins
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.jacobi import JacobiProposer
from specdec.strategies.lookahead import LookaheadProposer

OWN = JacobiProposer(n=4)


@pytest.fixture(name="aliases")
def _aliases() -> StrategyAliases:
    return StrategyAliases(load_plugins(), {"mine": "eagle:head=learnt"}, {"jacobi:n=4": OWN}, max_size=8.0)


def test_the_servers_own_strategy_is_the_same_object_by_its_name(aliases: StrategyAliases) -> None:
    assert aliases.proposer("jacobi:n=4") is OWN
    assert [type(each).__name__ for each in aliases.usual] == [
        "JacobiProposer", "AutoregressiveProposer", "AutoProposer", "EagleProposer",
    ]  # fmt: skip


def test_the_same_text_is_the_same_object(aliases: StrategyAliases) -> None:
    assert aliases.proposer("lookahead:N=3") is aliases.proposer("lookahead:N=3")
    assert isinstance(aliases.proposer("lookahead:N=3"), LookaheadProposer)
    assert isinstance(aliases.proposer("off"), AutoregressiveProposer)


def test_what_names_a_file_is_the_operators(aliases: StrategyAliases) -> None:
    assert str(aliases.proposer("mine").head) == "learnt"  # type: ignore[attr-defined]
    with pytest.raises(ApiError, match="only the server's operator can set"):
        aliases.proposer("eagle3:head=a/folder")
    with pytest.raises(ApiError, match="it offers mine"):
        aliases.proposer("eagle")
    assert "mine" in aliases.names
    assert "eagle" not in aliases.names


@pytest.mark.parametrize(
    "text", ["lookahead:W=2000", "suffix+prompt_lookup:num_tokens=1e9", "jacobi:n=true,n=2", "+", "", " : "]
)
def test_what_is_too_large_or_no_strategy_is_refused(aliases: StrategyAliases, text: str) -> None:
    with pytest.raises(ApiError) as refused:
        aliases.proposer(text)
    assert refused.value.status == 400
    assert refused.value.param == "proposer"


def test_a_rule_is_refused_by_its_own_field(aliases: StrategyAliases) -> None:
    with pytest.raises(ApiError) as refused:
        aliases.verifier("typical:epsilon=9999")
    assert refused.value.param == "verifier"
