"""Timing beside other programs: calls that waited for a processor are known."""

import os
import subprocess
import sys

import pytest

from specdec.machine.facts import waits_by_thread
from specdec.runtime.probes.costs import Timer


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
