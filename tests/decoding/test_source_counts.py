"""Counts by source, compared with a count over the records; predicted probabilities that come true."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from specdec import DraftTree, Generator, ToyModel
from specdec.costs import Costs
from specdec.decoding.stats import NUM_BINS, SourceCounts
from specdec.record import StepRecord
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.base import Engine
from specdec.strategies.host import Host
from specdec.strategies.sources.recycling import TokenRecyclingProposer
from specdec.strategies.sources.suffix import SuffixProposer


class Cheap(MergedProposer):
    """A merge for which nodes cost next to nothing, so that unlikely ones are drafted too."""

    def bind(self, host: Host) -> Engine:
        return super().bind(replace(host, costs=lambda: Costs((1, 101), (1.0, 1.5), 1.0)))


def decoded(num_tokens: int, **settings: Any) -> tuple[Any, list[StepRecord]]:
    records: list[StepRecord] = []
    merge = Cheap([SuffixProposer(), TokenRecyclingProposer()], clock=False)
    generator = Generator(ToyModel.random(12, order=2, seed=5, sharpness=1.2), proposer=merge)
    result = generator.generate([1, 2, 3], max_new_tokens=num_tokens, on_step=records.append, **settings)
    return result, records


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nodes_count_for_each_strategy_that_proposed_them(temperature: float) -> None:
    result, records = decoded(150, temperature=temperature, seed=1)
    sources: dict[str, dict[int, list[int]]] = {}
    judged: dict[str, list[list[float]]] = defaultdict(lambda: [[0, 0.0, 0] for _ in range(NUM_BINS)])
    for outcome in (outcome for record in records for outcome in record.outcomes):
        tree = outcome.tree
        if tree is None:
            continue
        text = tree.path(outcome.path[-1]) if len(outcome.tokens) < len(outcome.path) else list(outcome.tokens)
        for node, names in tree.proposed_by.items():
            above, own = tree.path(tree.parents[node]), tree.path(node)
            for name in names:
                counts = sources.setdefault(name, {}).setdefault(len(own), [0, 0])
                counts[0] += 1
                counts[1] += node in outcome.path
                if text[: len(above)] == above and len(text) >= len(own):
                    cell = judged[name][min(9, int(10 * tree.probs[node]))]
                    cell[0] += 1
                    cell[1] += tree.probs[node]
                    cell[2] += text[: len(own)] == own
    assert sources
    assert result.stats.sources == sources
    assert result.stats.calibration.keys() == judged.keys()
    for name, bins in result.stats.calibration.items():
        assert [pytest.approx(cell) for cell in judged[name]] == bins


def test_likely_nodes_come_true_as_often_as_predicted() -> None:
    """Kinds of less likely ones are met too rarely here for their rates to be known."""
    result, _ = decoded(2500, temperature=1.0, seed=3)
    bins = [
        (cell[0], cell[1] / cell[0], cell[2] / cell[0])
        for each in result.stats.calibration.values()
        for cell in each[6:]
        if cell[0] >= 150
    ]
    assert len(bins) >= 6
    assert [cell for cell in bins if abs(cell[1] - cell[2]) > 0.1] == []


def test_a_probability_is_conditional_on_the_parent() -> None:
    tree = DraftTree(7)
    first = tree.add(0, 1)
    second = tree.add(first, 2)
    other = tree.add(0, 3)
    tree.proposed_by = {first: ("a",), second: ("a", "b"), other: ("b",)}
    tree.probs = {first: 0.5, second: 1.0, other: 0.25}
    counts = SourceCounts()
    counts.add(tree, (0, first), (1, 4))  # the first is right, the second is not, and the other wasn't
    assert counts.calibration["a"][5] == [1, 0.5, 1]
    assert counts.calibration["a"][9] == counts.calibration["b"][9] == [1, 1.0, 0]
    assert counts.calibration["b"][2] == [1, 0.25, 0]
    counts = SourceCounts()
    counts.add(tree, (0,), (3,))  # the other: below the first nothing is known
    assert counts.calibration["a"][9] == [0, 0.0, 0]
    assert counts.calibration["b"][2] == [1, 0.25, 1]
    counts = SourceCounts()
    counts.add(tree, (0, first), (1,))  # the text ended there
    assert counts.calibration["a"][9] == [0, 0.0, 0]
    assert counts.by_depth == {"a": {1: [1, 1], 2: [1, 0]}, "b": {1: [1, 0], 2: [1, 0]}}
