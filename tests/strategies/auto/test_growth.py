"""The growth of drafts: the likeliest nodes, for any sources; and what is learnt from the committed tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Budget, Request
from specdec.decoding.request_state import TokenView
from specdec.sampling.randomness import Randomness
from specdec.strategies.auto.acceptance_rates import AcceptanceRate, AcceptanceRates, Agreements
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.source import Candidate, Source

Path = tuple[int, ...]


def request(stops: frozenset[int] = frozenset()) -> Request:
    return Request(TokenView([9]), 1, 10, stops, 0.0, Randomness(0).stream("test"))


class Table(Source):
    """Says what a table has for each path."""

    def __init__(self, table: Mapping[Path, Mapping[int, AcceptanceRate]]) -> None:
        super().__init__(request())
        self._table = table

    def root(self) -> Path:
        return ()

    def follow(self, state: Path, token: int) -> Path | None:
        return (*state, token)

    def candidates(self, state: Path) -> Sequence[Candidate]:
        return list(self._table.get(state, {}).items())


tables = st.dictionaries(
    st.lists(st.integers(0, 2), max_size=3).map(tuple),
    st.dictionaries(st.integers(0, 2), st.floats(0.01, 0.99).map(AcceptanceRate), max_size=3),
    max_size=12,
)
ROOMY = Budget(99, 99, 100)


@given(table=tables, num_nodes=st.integers(0, 8), depth=st.integers(0, 4))
def test_for_every_number_of_nodes_the_likeliest_are_taken(
    table: dict[Path, dict[int, AcceptanceRate]], num_nodes: int, depth: int
) -> None:
    probabilities = {(): 1.0}
    frontier = [()]
    while frontier:
        path = frontier.pop()
        for token, rate in table.get(path, {}).items() if len(path) < depth else ():
            probabilities[*path, token] = probabilities[path] * rate.value
            frontier.append((*path, token))
    best = sorted((probability for path, probability in probabilities.items() if path), reverse=True)[:num_nodes]
    growth = Growth({0: Table(table)}, request(), Budget(num_nodes, depth, 99))
    while growth.next_probability:
        growth.take()
    assert growth.probabilities[1:] == pytest.approx(best)
    tree = growth.tree(len(growth))
    assert [probabilities[tuple(tree.path(node))] for node in range(len(tree))] == pytest.approx(growth.probabilities)


def test_nothing_grows_behind_an_end_of_text_nor_beyond_the_tokens_that_are_left() -> None:
    table = {
        (): {1: AcceptanceRate(0.9), 2: AcceptanceRate(0.8)},
        (1,): {2: AcceptanceRate(0.9)},
        (2,): {1: AcceptanceRate(0.9)},
        (2, 1): {2: AcceptanceRate(0.9)},
    }
    growth = Growth({0: Table(table)}, request(frozenset({1})), Budget(99, 99, 3))
    while growth.next_probability:
        growth.take()
    assert {tuple(growth.tree(9).path(node)) for node in range(1, len(growth))} == {(1,), (2,), (2, 1)}


def test_a_chain_has_the_likeliest_token_at_each_depth() -> None:
    table = {
        (): {1: AcceptanceRate(0.5), 2: AcceptanceRate(0.6)},
        (1,): {2: AcceptanceRate(0.9)},
        (2,): {1: AcceptanceRate(0.1), 0: AcceptanceRate(0.2)},
    }
    growth = Growth({0: Table(table)}, request(), ROOMY, is_chain=True)
    while growth.next_probability:
        growth.take()
    assert growth.tree(9).tokens == [9, 2, 0]


@given(table=tables, tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5), num_nodes=st.integers(0, 6))
def test_each_candidate_along_the_committed_tokens_is_counted_once(
    table: dict[Path, dict[int, AcceptanceRate]], tokens: list[int], num_nodes: int
) -> None:
    growth = Growth({0: Table(table)}, request(), ROOMY)
    while len(growth) <= num_nodes and growth.next_probability:
        growth.take()
    before = {path: {token: (rate.value, rate.weight) for token, rate in said.items()} for path, said in table.items()}
    growth.learn(tokens)
    reached = {tuple(growth.tree(99).path(node)) for node in range(len(growth))}
    for path, said in table.items():
        is_on_path = len(path) < len(tokens) and path == tuple(tokens[: len(path)]) and path in reached
        for token, rate in said.items():
            value, weight = before[path][token]
            if is_on_path:
                assert rate.weight == pytest.approx(0.995 * weight + 1)
                assert (rate.value > value) == (token == tokens[len(path)])
            else:
                assert (rate.value, rate.weight) == (value, weight)


def test_nodes_that_are_known_ahead_and_were_not_taken_teach_nothing() -> None:
    table = {(1,) * depth: {1: AcceptanceRate(0.9)} for depth in range(9)}
    growth = Growth({0: Table(table)}, request(), ROOMY)
    for _ in range(2):
        assert growth.next_probability
        growth.take()
    assert len(growth) == 3 < len(growth.tokens)
    growth.learn([1] * 8)
    assert [rates[1].weight > 4.0 for rates in table.values()] == [True] * 3 + [False] * 6


def test_agreement_is_a_kind_of_its_own() -> None:
    both, one, other = Agreements(), AcceptanceRate(0.5, "one"), AcceptanceRate(0.4, "other")
    sources = {0: Table({(): {1: one}}), 1: Table({(): {1: other, 2: other}})}
    for index in range(300):
        growth = Growth(sources, request(), ROOMY, both)
        growth.learn([1 if index % 10 else 3])
    assert both[one, other].value == pytest.approx(0.9, abs=0.05)
    assert one.value == 0.5  # never named alone
    assert other.contested.value < 0.1
    assert Growth(sources, request(), ROOMY, both).next_probability == both[one, other].value
    tree = Growth(sources, request(), ROOMY, both)
    tree.take()
    assert tree.tree(2).proposed_by == {1: ("one", "other")}


def test_what_another_source_contests_says_nothing_of_the_source_alone() -> None:
    both, one, other = Agreements(), AcceptanceRate(0.5, "one"), AcceptanceRate(0.4, "other")
    for _ in range(300):
        growth = Growth({0: Table({(): {1: one}}), 1: Table({(): {2: other}})}, request(), ROOMY, both)
        growth.learn([1])
    assert (one.value, other.value) == (0.5, 0.4)
    assert (one.contested.value, other.contested.value) == (pytest.approx(1.0, abs=0.05), pytest.approx(0.0, abs=0.05))
    assert Growth({1: Table({(): {2: other}})}, request(), ROOMY, both).next_probability == 0.4


def test_a_source_that_fails_is_told_of_and_the_others_go_on() -> None:
    class Broken(Table):
        def follow(self, state: Path, token: int) -> Path | None:
            raise RuntimeError("out of order")

    told = list[str]()
    sources = {
        0: Broken({(): {1: AcceptanceRate(0.9)}}),
        1: Table({(): {1: AcceptanceRate(0.5)}, (1,): {2: AcceptanceRate(0.5)}, (1, 2): {0: AcceptanceRate(0.5)}}),
    }
    growth = Growth(sources, request(), ROOMY, on_failure=lambda _, error: told.append(str(error)))
    while growth.next_probability:
        growth.take()
    assert growth.tree(9).tokens == [9, 1, 2, 0]
    assert told == ["out of order"]
    with pytest.raises(RuntimeError, match="out of order"):
        Growth(sources, request(), ROOMY).take()


@pytest.mark.parametrize("token", [-1, 10, None, "text"])
def test_a_source_that_proposes_what_is_no_token_of_the_vocabulary_is_left_out_alone(token: Any) -> None:
    told, wrong = list[int](), {token: AcceptanceRate(0.01)}  # less probable than all else
    sources = {0: Table({(): {1: AcceptanceRate(0.5)}, (1,): {2: AcceptanceRate(0.5)}}), 1: Table({(1,): wrong})}
    growth = Growth(sources, request(), Budget(2, 99, 100), on_failure=lambda index, _: told.append(index))
    growth.take_all()
    assert growth.tree(9).tokens == [9, 1, 2]
    assert told == [1]


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=60))
def test_a_rate_is_the_weighted_mean_of_what_was_seen_and_the_first_guess(outcomes: list[bool]) -> None:
    rate = AcceptanceRates("source", lambda _: 0.25)["kind"]
    for is_right in outcomes:
        rate.update(is_right)
    weights = [4.0 * 0.995 ** len(outcomes), *(0.995 ** (len(outcomes) - 1 - index) for index in range(len(outcomes)))]
    seen = [0.25, *map(float, outcomes)]
    assert rate.value == pytest.approx(sum(w * s for w, s in zip(weights, seen, strict=True)) / sum(weights))
