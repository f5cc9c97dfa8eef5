"""The phases of a step and the clock that counts their seconds. This module doesn't import torch."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

PHASES = ("propose", "compile", "forward", "verify", "commit")

P = ParamSpec("P")
R = TypeVar("R")


class PhaseClock:
    """The seconds of a step, by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Clocked(Protocol):
    """An object with a clock."""

    @property
    def clock(self) -> PhaseClock:
        """Counts the seconds."""


C = TypeVar("C", bound=Clocked)
Stage = Callable[Concatenate[C, P], R]


def timed(phase: str) -> Callable[[Stage[C, P, R]], Stage[C, P, R]]:
    """Decorate a function whose first argument has a clock: its time counts as the phase's."""

    def decorate(stage: Stage[C, P, R]) -> Stage[C, P, R]:
        @wraps(stage)
        def run(first: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with first.clock.phase(phase):
                return stage(first, *args, **kwargs)

        return run

    return decorate
