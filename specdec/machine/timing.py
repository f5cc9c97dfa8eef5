"""Timing on a machine where other programs run: rounds in which this process waited for a processor are left out."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from specdec.machine.facts import waits_by_thread

Taken = TypeVar("Taken")
_MOST_TIMES = 3  # times the requested rounds, if some are disturbed
_WAITED = 0.05  # of a measured time: if a thread waits longer for a processor, the time is useless


@dataclass(frozen=True, slots=True)
class Timer:
    """Times calls, and reports whether other programs used the processor meanwhile.

    Attributes:
        clock: returns seconds.
        waits: returns the seconds that each thread of this process has waited for a processor so far; {} if unknown.
    """

    clock: Callable[[], float] = time.perf_counter
    waits: Callable[[], Mapping[str, float]] = waits_by_thread

    def time(self, run: Callable[[], object]) -> tuple[float, bool]:
        """Return a call's seconds, and True if no thread had to wait for a processor."""
        before, began = self.waits(), self.clock()
        run()
        seconds = self.clock() - began
        waited = max((total - before.get(thread, 0.0) for thread, total in self.waits().items()), default=0.0)
        return seconds, waited <= _WAITED * seconds


def undisturbed(
    one_round: Callable[[int], tuple[Taken, bool]], num_rounds: int, least: int, may_begin: Callable[[int], bool]
) -> tuple[list[Taken], bool]:
    """Run rounds until ``num_rounds`` were undisturbed, three times as many were run, or ``may_begin`` returns False.

    Args:
        one_round: runs the round with a number; returns its times and whether it was undisturbed.
        least: the number of undisturbed rounds that suffice without the others.

    Returns:
        The undisturbed rounds and True, or all rounds and False if too few were undisturbed.
    """
    every, quiet = list[Taken](), list[Taken]()
    while len(quiet) < num_rounds and len(every) < _MOST_TIMES * num_rounds and may_begin(len(every)):
        taken, was_quiet = one_round(len(every))
        every.append(taken)
        quiet += [taken] if was_quiet else []
    is_quiet = len(quiet) >= min(least, num_rounds)
    return (quiet if is_quiet else every), is_quiet
