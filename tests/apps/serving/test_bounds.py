"""What a request's options may cost: strategies above the limit are refused, the operator may raise it, texts stay."""

import sys

import pytest
from pydantic import Field

from specdec import Proposer, hookimpl
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.strategy_aliases import StrategyAliases
from specdec.plugins.registry import load_plugins
from specdec.strategies.autoregressive import AutoregressiveProposer
from tests.apps.serving.serving import Served, serving

BODY = {"model": "demo", "prompt": "# heapq\ndef merge(", "max_tokens": 12, "temperature": 0}
LARGE = [
    "token_recycling:num_nodes=1024,min_probability=0.0,k=1000",
    "lookahead:N=20,W=1000,G=1000",
    "prompt_lookup:max_ngram=1024",  # the index of a repeated text has n-grams of each length
    "suffix:depth=1024",  # and so has its trie
    "jacobi:n=" + "9" * 400,
    "suffix:num_nodes=60,depth=60",  # each of which is allowed alone
    "+".join(["suffix"] * 20),
    "auto+auto+auto",
]


@pytest.mark.parametrize("name", LARGE)
def test_large_strategies_are_refused_with_their_size_the_limit_and_the_operators_option(name: str) -> None:
    aliases = StrategyAliases(load_plugins(), {}, {}, max_size=8.0)
    with pytest.raises(
        ApiError, match=r"as large as [\d,.]+ strategies .* as large as 8: .*--max-strategy-size"
    ) as error:
        aliases.proposer(name)
    assert (error.value.status, error.value.param) == (400, "proposer")
    assert len(str(error.value)) < 500


class _Waiting(AutoregressiveProposer):
    seconds: float = 0.0
    share: float = Field(default=0.0, le=1.0)


@hookimpl
def specdec_proposers() -> dict[str, type[Proposer]]:
    return {"waiting": _Waiting}


def test_seconds_for_which_the_server_would_stand_still_are_the_operators() -> None:
    registry = load_plugins()
    registry.register(sys.modules[__name__], "a-plug-in")
    aliases = StrategyAliases(registry, {"mine": "waiting:seconds=5"}, {}, max_size=8.0)
    with pytest.raises(ApiError, match="seconds has no limit, so only the server's operator can set it"):
        aliases.proposer("waiting:seconds=5")
    assert aliases.proposer("mine") == _Waiting(seconds=5)
    assert aliases.proposer("waiting:share=0.5") == _Waiting(share=0.5)


def test_the_limit_holds_for_requests_and_not_for_what_the_operator_offers(served: Served) -> None:
    expected = served.post("/v1/completions", {**BODY, "proposer": "off"}).json()["choices"][0]["text"]
    refused = served.post("/v1/completions", {**BODY, "proposer": LARGE[0]})
    assert refused.status_code == 400
    assert "--max-strategy-size" in refused.json()["error"]["message"]
    with serving(max_strategy_size=20_000.0, offered={"large": LARGE[1]}) as raised:
        for name in (LARGE[0], "large"):
            answer = raised.post("/v1/completions", {**BODY, "proposer": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["text"] == expected
