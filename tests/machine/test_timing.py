"""Timing beside other programs: calls that waited for a processor are known, and rounds with them are left out."""

import os
import subprocess
import sys
from itertools import count

import pytest

from specdec.machine.facts import waits_by_thread
from specdec.machine.timing import Timer, undisturbed


def test_a_call_whose_thread_waited_is_disturbed() -> None:
    waits, now = {"main": 0.0}, [0.0]

    def run(waited: float) -> None:
        now[0] += 1.0
        waits["main"] += waited
        waits["worker"] = waited  # a thread that began meanwhile

    timer = Timer(lambda: now[0], waits.copy)
    assert timer.time(lambda: run(0.0)) == (1.0, True)
    assert timer.time(lambda: run(0.04)) == (1.0, True)
    assert timer.time(lambda: run(0.2)) == (1.0, False)


def rounds(disturbed: set[int], num_rounds: int = 4, most: int = 100) -> tuple[list[int], bool, int]:
    """Return the numbers of the rounds that are left, whether they are quiet, and how many were made."""
    made = count()
    left, is_quiet = undisturbed(
        lambda _: (number := next(made), number not in disturbed), num_rounds, 2, lambda number: number < most
    )
    return left, is_quiet, next(made)


def test_disturbed_rounds_are_left_out_where_two_others_remain_and_more_are_made_for_them() -> None:
    assert rounds(set()) == ([0, 1, 2, 3], True, 4)
    assert rounds({1, 2, 4}) == ([0, 3, 5, 6], True, 7)
    assert rounds(set(range(100)) - {9}) == ([*range(12)], False, 12)


def test_rounds_end_when_no_other_may_begin() -> None:
    assert rounds(set(), most=2) == ([0, 1], True, 2)
    assert rounds({0}, most=2) == ([0, 1], False, 2)


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
