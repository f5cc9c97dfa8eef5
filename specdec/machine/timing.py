"""Timing in rounds: each contender runs once in every round, so other programs slow down all of them equally."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec.machine.facts import waits_by_thread

Clock = Callable[[], float]
Taken = TypeVar("Taken")
_LEAST_ROUNDS = 2  # rounds that are always run, and undisturbed rounds that suffice without the others
_MOST_TIMES = 3  # times the requested rounds, if some are disturbed
_WAITED = 0.05  # of a measured time: if a thread waits longer for a processor, the time is useless
_SAME = 1.03  # contenders whose times differ by less are equals
_WIDTH = 0.65  # of the median ratio's interval, divided by the square root of the rounds; covers 4 cases in 5


@dataclass(frozen=True, slots=True)
class Timer:
    """Times calls, and reports whether other programs used the processor meanwhile.

    Attributes:
        clock: returns seconds.
        waits: returns the seconds that each thread of this process has waited for a processor so far; {} if unknown.
    """

    clock: Clock = time.perf_counter
    waits: Callable[[], Mapping[str, float]] = waits_by_thread

    def time(self, run: Callable[[], object]) -> tuple[float, bool]:
        """Return a call's seconds, and True if no thread had to wait for a processor."""
        before, began = self.waits(), self.clock()
        run()
        seconds = self.clock() - began
        waited = max((total - before.get(thread, 0.0) for thread, total in self.waits().items()), default=0.0)
        return seconds, waited <= _WAITED * seconds


@dataclass(frozen=True, slots=True)
class Rounds:
    """The seconds of some contenders, round by round.

    Attributes:
        seconds: by contender, one entry per round.
        is_quiet: True if no round is known to be disturbed. Disturbed rounds are left out if there are enough others.
    """

    seconds: Mapping[str, Sequence[float]]
    is_quiet: bool = True

    def __len__(self) -> int:
        return min(map(len, self.seconds.values()), default=0)

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """Return the same with each contender's seconds multiplied by its factor."""
        scaled = {name: [factors[name] * each for each in taken] for name, taken in self.seconds.items()}
        return type(self)(scaled, self.is_quiet)

    def of(self, names: Sequence[str]) -> Self:
        """Return some contenders' seconds."""
        return type(self)({name: self.seconds[name] for name in names}, self.is_quiet)

    def with_more(self, more: Self) -> Self:
        """Return the rounds of both, or only the quiet ones if just one of the two is quiet."""
        if self.is_quiet != more.is_quiet:
            return self if self.is_quiet else more
        return type(self)({name: [*self.seconds[name], *more.seconds[name]] for name in self.seconds}, self.is_quiet)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a contest.

    Attributes:
        winner: the fastest contender, or the one listed first among those that are equally fast.
        runner_up: the fastest of the others; None if there is none.
        is_clear: False if the rounds disagree or were disturbed, so the winner shouldn't be remembered.
    """

    winner: str
    runner_up: str | None = None
    is_clear: bool = True


def timed_rounds(
    contenders: Mapping[str, Callable[[], object]],
    num_rounds: int,
    timer: Timer,
    before: Callable[[], object] = lambda: None,
    seconds: float = math.inf,
) -> Rounds:
    """Time each contender in each round, after an untimed first call of each.

    Args:
        num_rounds: the number of undisturbed rounds to collect.
        before: called before each contender, to empty caches for example.
        seconds: no round except the first two begins later than this.
    """
    for run in contenders.values():
        run()
    names, end = list(contenders), timer.clock() + seconds

    def one_round(number: int) -> tuple[dict[str, float], bool]:
        first = number % len(names)  # each round begins with another one
        taken, was_quiet = dict[str, float](), True
        for name in names[first:] + names[:first]:
            before()
            taken[name], is_alone = timer.time(contenders[name])
            was_quiet = was_quiet and is_alone
        return taken, was_quiet

    rounds, is_quiet = undisturbed(
        one_round, num_rounds, _LEAST_ROUNDS, lambda number: number < _LEAST_ROUNDS or timer.clock() <= end
    )
    return Rounds({name: [taken[name] for taken in rounds] for name in names}, is_quiet)


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


def judge(parts: Sequence[Rounds]) -> Verdict:
    """Return the verdict on contenders that were timed in several parts, by the sum of the parts.

    The winner has the smallest sum of minima over its parts, because other programs only add to a time. The verdict is
    clear if the ratios of whole rounds agree with it: a disturbance cancels in a ratio of times measured close
    together. Contenders within 3 % of each other count as equal.
    """
    sums, least = whole_rounds(parts), dict[str, float]()
    for name in sums:
        least[name] = sum(min(part.seconds[name]) for part in parts)
    order = sorted(sums, key=least.__getitem__)
    fastest, equals, is_clear = order[0], [order[0]], all(part.is_quiet for part in parts)
    for name in order[1:]:
        low, high = _interval(sums[name] / sums[fastest])
        if low >= 1 / _SAME and high <= _SAME:
            equals.append(name)
        elif low <= 1.0:
            is_clear = False
    winner = min(equals, key=list(sums).index)
    return Verdict(winner, next((name for name in order if name != winner), None), is_clear)


def whole_rounds(parts: Sequence[Rounds]) -> dict[str, NDArray[np.float64]]:
    """Return the seconds summed over all parts, by contender and round; rounds missing in some part are left out."""
    num = min(map(len, parts))
    return {name: np.sum([part.seconds[name][:num] for part in parts], axis=0) for name in parts[0].seconds}


def _interval(ratios: NDArray[np.float64]) -> tuple[float, float]:
    """Return bounds of the median ratio; more rounds give closer bounds."""
    half = min(0.5, _WIDTH / math.sqrt(len(ratios)))
    low, high = np.quantile(ratios, (0.5 - half, 0.5 + half))
    return float(low), float(high)
