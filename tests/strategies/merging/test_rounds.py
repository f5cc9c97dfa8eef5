"""Rounds of growth: one more node of every row, or the likeliest of all."""

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from specdec import DraftTree
from specdec.record import Outcome, StepRecord
from specdec.strategies.merging.rounds import PackedRounds, PaddedRounds, Rounds
from tests.support.told_growth import ToldGrowth

chances = st.lists(st.floats(0.01, 1.0), max_size=5)


def played(rounds: Rounds, most: int = 100) -> int:
    """Take all nodes of so many rounds; the number of rounds with any."""
    for number in range(most):
        growing = rounds.next()
        if not any(growth.next_chance for growth in growing):
            return number
        for growth in growing:
            if growth.next_chance:
                growth.take()
    return most


@given(rows=st.lists(st.tuples(chances, st.integers(0, 6)), min_size=1, max_size=4), num_rounds=st.integers(0, 8))
def test_packed_rounds_give_the_likeliest_drafts_of_so_many_nodes(
    rows: Sequence[tuple[list[float], int]], num_rounds: int
) -> None:
    """Against all ways to share the nodes."""
    growths = [ToldGrowth(row) for row, _ in rows]
    limits = [limit for _, limit in rows]
    rounds = PackedRounds(growths, limits)
    num_taken = played(rounds, num_rounds)
    sizes = rounds.sizes(num_taken)
    assert sizes == [len(growth) for growth in growths]
    ordered = [sorted(row, reverse=True)[:limit] for row, limit in rows]
    assert num_taken == min(num_rounds, sum(map(len, ordered)))
    ways = product(*(range(len(row) + 1) for row in ordered))
    best = max(
        sum(sum(row[:count]) for row, count in zip(ordered, way, strict=True)) for way in ways if sum(way) == num_taken
    )
    assert abs(sum(sum(growth.chances[1:]) for growth in growths) - best) < 1e-9


def test_packed_rounds_of_which_not_all_are_fed_leave_the_last_out() -> None:
    rounds = PackedRounds([ToldGrowth([0.9, 0.5]), ToldGrowth([0.8, 0.7])], [5, 5])
    assert played(rounds) == 4
    assert [rounds.sizes(count) for count in range(5)] == [[1, 1], [2, 1], [2, 2], [2, 3], [3, 3]]


def test_padded_rounds_take_one_of_every_row_that_may_have_more() -> None:
    growths = [ToldGrowth([0.9] * 9), ToldGrowth([0.9] * 9)]
    rounds = PaddedRounds(growths, [4, 2])
    assert played(rounds) == 4
    assert [len(growth) for growth in growths] == [5, 3]
    assert rounds.sizes(3) == [4, 4]


def test_a_steps_place_is_its_width_or_all_its_drafted_nodes_and_one() -> None:
    outcomes = []
    for drafted in (3, 0, 1):
        tree = DraftTree(0)
        tree.add_chain(0, range(drafted))
        outcomes.append(Outcome(request=None, tree=tree))  # type: ignore[arg-type]
    record = StepRecord("step", (*outcomes, Outcome(request=None)), width=4)  # type: ignore[arg-type]
    assert (PaddedRounds.place(record), PackedRounds.place(record)) == (4, 5)
