"""Offers: strategies by name, those with files by a name of the operator's, and the same object for the same text."""

import pytest

from specdec.plugins.registry import load_plugins
from specdec.serving.errors import ApiError
from specdec.serving.strategy_aliases import Offers
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.jacobi import JacobiProposer
from specdec.strategies.lookahead import LookaheadProposer

OWN = JacobiProposer(n=4)


@pytest.fixture(name="offers")
def _offers() -> Offers:
    return Offers(load_plugins(), {"mine": "token_recycling:path=learnt.bin"}, {"jacobi:n=4": OWN})


def test_the_servers_own_strategy_is_the_same_object_by_its_name(offers: Offers) -> None:
    assert offers.proposer("jacobi:n=4") is OWN
    assert [type(each).__name__ for each in offers.usual] == [
        "JacobiProposer", "AutoregressiveProposer", "AutoProposer", "TokenRecyclingProposer",
    ]  # fmt: skip


def test_the_same_text_is_the_same_object(offers: Offers) -> None:
    assert offers.proposer("lookahead:N=3") is offers.proposer("lookahead:N=3")
    assert isinstance(offers.proposer("lookahead:N=3"), LookaheadProposer)
    assert isinstance(offers.proposer("off"), AutoregressiveProposer)


def test_what_names_a_file_is_the_operators(offers: Offers) -> None:
    assert str(offers.proposer("mine").path) == "learnt.bin"  # type: ignore[attr-defined]
    with pytest.raises(ApiError, match="only the server's operator can set"):
        offers.proposer("token_recycling:path=learnt.bin")
    with pytest.raises(ApiError, match="it offers mine"):
        offers.proposer("datastore")
    assert "mine" in offers.names
    assert "datastore" not in offers.names


@pytest.mark.parametrize("text", ["lookahead:W=2000", "suffix+jacobi:n=1e9", "jacobi:n=true,n=2", "+", "", " : "])
def test_what_is_too_large_or_no_strategy_is_refused(offers: Offers, text: str) -> None:
    with pytest.raises(ApiError) as refused:
        offers.proposer(text)
    assert refused.value.status == 400
    assert refused.value.param == "proposer"


def test_a_rule_is_refused_by_its_own_field(offers: Offers) -> None:
    with pytest.raises(ApiError) as refused:
        offers.verifier("typical:epsilon=9999")
    assert refused.value.param == "verifier"
