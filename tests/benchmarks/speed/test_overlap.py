"""Which outcomes of a pass count as guessed, on a draft whose probabilities are worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.speed.overlap import guessed
from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.acceptance_rates import AcceptanceRate
from specdec.tree import ROOT, DraftTree


def growth() -> Any:
    """A growth of 7, and 8 after it: the accepted path ends at the root with 0.2, at 7 with 0.56 and at 8 with 0.24."""
    by_node = {7: 0.8, 9: 0.1}, {8: 0.3, 4: 0.2}, {3: 0.9}
    candidates = [{token: AcceptanceRate(rate, "any") for token, rate in rates.items()} for rates in by_node]
    return SimpleNamespace(probabilities=[1.0, 0.8, 0.24], candidates=candidates)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((9,), (False, False)),  # with 0.1
        ((7, 4), (True, False)),  # 0.16
        ((7, 8, 3), (False, True)),  # 0.22: the most probable of the outcomes that have a token after the path
        ((7, 8, 5), (False, False)),
    ],
)
def test_the_most_likely_path_and_the_most_likely_outcome_are_guessed(tokens, expected):
    tree = DraftTree(5)
    tree.add_chain(ROOT, [7, 8])
    for drafter, answer in ((SimpleNamespace(growth=growth()), expected), (None, (False, False))):
        request: Any = SimpleNamespace(drafter=drafter)
        outcome = Outcome(request, tree=tree, path=tuple(range(len(tokens))), tokens=tokens)
        assert guessed(StepRecord("step", (outcome,))) == answer
