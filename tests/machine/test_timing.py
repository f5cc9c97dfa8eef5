"""Contests by rounds: the winner is the same whatever other programs did, or the verdict isn't clear."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.machine.facts import waits_by_thread
from specdec.machine.timing import Rounds, Timer, Verdict, judge, timed_rounds

TRUE = {"fast": 1.0, "slow": 1.2}  # seconds where nothing else runs


def contest(disturbed: Callable[[str, int], float], num_rounds: int = 6) -> list[Rounds]:
    """Time both by a clock that runs faster for a contender in some rounds."""
    now, calls = [0.0], dict.fromkeys(TRUE, -1)

    def run(name: str) -> None:
        now[0] += TRUE[name] * disturbed(name, max(0, calls[name]))
        calls[name] += 1  # the first call isn't timed

    runs = {name: lambda name=name: run(name) for name in TRUE}
    return [timed_rounds(runs, num_rounds, Timer(lambda: now[0], dict))]


def test_each_round_has_each_contender_once_and_begins_with_another_one() -> None:
    told: list[str] = []
    runs = {name: lambda name=name: told.append(name) for name in "abc"}
    times = timed_rounds(runs, 4, Timer(count().__next__, dict), before=lambda: told.append("cold"))
    assert told[:3] == ["a", "b", "c"]
    assert "".join(told[4::2]) == "abcbcacababc"
    assert set(told[3::2]) == {"cold"}
    assert times == Rounds({name: [1, 1, 1, 1] for name in "abc"})


def test_a_quiet_contest_is_clear() -> None:
    assert judge(contest(lambda *_: 1.0)) == Verdict("fast", "slow", True)


def test_a_program_that_slows_everything_from_the_middle_on_changes_nothing() -> None:
    times = contest(lambda _, number: 3.0 if number >= 3 else 1.0)
    assert judge(times) == Verdict("fast", "slow", True)
    for cut in range(1, 6):  # in the middle of a round: the second contender of it is slow, and all that follow
        halves = contest(lambda name, number, cut=cut: 3.0 if number + (name == "slow") > cut else 1.0)
        assert judge(halves) == Verdict("fast", "slow", True)


def test_rounds_in_which_one_contender_was_slowed_leave_the_winner_and_more_rounds_make_it_clear() -> None:
    def third_to_fifth(name: str, number: int) -> float:
        return 2.0 if name == "fast" and number in {2, 3, 4} else 1.0

    few, more = (contest(third_to_fifth, num_rounds) for num_rounds in (6, 12))
    assert sum(few[0].seconds["fast"]) > sum(few[0].seconds["slow"]), "by the mean the other one would win"
    assert judge(few) == Verdict("fast", "slow", False)
    assert judge(more) == Verdict("fast", "slow", True)


def test_a_contender_that_was_never_undisturbed_is_not_beaten_clearly() -> None:
    times = contest(lambda name, number: (1.3, 1.9, 1.25, 1.1, 1.6, 1.3)[number] if name == "fast" else 1.0)
    assert not judge(times).is_clear


@given(st.lists(st.floats(0.1, 100.0), min_size=2, max_size=20))
def test_what_hits_a_whole_round_cancels(factors: list[float]) -> None:
    verdict = judge(contest(lambda _, number: factors[number], len(factors)))
    assert verdict == Verdict("fast", "slow", True)


@given(st.sets(st.tuples(st.sampled_from(sorted(TRUE)), st.integers(1, 9))), st.floats(1.0, 50.0))
def test_bursts_never_make_the_slower_one_win_while_each_had_a_round_to_itself(
    hit: set[tuple[str, int]], factor: float
) -> None:
    assert judge(contest(lambda name, number: factor if (name, number) in hit else 1.0, 10)).winner == "fast"


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_of_equals_the_first_listed_wins(names: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    verdict = judge([Rounds({name: list(1.0 + 0.01 * rng.random(8)) for name in names}) for _ in range(2)])
    assert (verdict.winner, verdict.runner_up, verdict.is_clear) == (*names, True)


def test_parts_are_added_up() -> None:
    parts = [Rounds({"a": [1.0, 1.0], "b": [2.0, 2.0]}), Rounds({"a": [5.0, 5.0, 5.0], "b": [3.0, 3.0, 3.0]})]
    assert judge(parts) == Verdict("b", "a", True)


def test_one_contender_wins() -> None:
    assert judge([Rounds({"a": [1.0]})]) == Verdict("a")


def test_disturbed_rounds_are_left_out_where_two_others_remain_and_more_are_made_for_them() -> None:
    waits, number = {"main": 0.0, "worker": 0.0}, count()

    def run() -> None:
        waits["worker"] += next(number) in disturbed

    def timed() -> Rounds:
        return timed_rounds({"a": run}, 4, Timer(count().__next__, waits.copy))

    disturbed = {2, 3, 5}
    assert timed() == Rounds({"a": [1] * 4})
    assert next(number) == 8, "a first call, and seven rounds"
    disturbed = set(range(100)) - {10}
    assert timed() == Rounds({"a": [1] * 12}, is_quiet=False)
    assert not judge([timed()]).is_clear


def test_no_round_but_two_begins_after_the_time() -> None:
    times = timed_rounds({"a": lambda: None}, 9, Timer(count().__next__, dict), seconds=0.0)
    assert times == Rounds({"a": [1, 1]})


def test_quiet_rounds_replace_others() -> None:
    quiet, disturbed = Rounds({"a": [1.0]}), Rounds({"a": [9.0]}, is_quiet=False)
    assert quiet.with_more(disturbed) == disturbed.with_more(quiet) == quiet
    assert quiet.with_more(quiet) == Rounds({"a": [1.0, 1.0]})


@pytest.mark.skipif(not waits_by_thread(), reason="this system doesn't tell how long threads wait")
def test_a_thread_that_shares_its_processor_waits() -> None:
    before = waits_by_thread()
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        while sum(waits_by_thread().values()) < sum(before.values()) + 0.02:
            pass
    finally:
        for other in others:
            other.kill()
            other.wait()
