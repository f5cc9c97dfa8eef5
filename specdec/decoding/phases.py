"""The phases of a step, and their seconds. This module doesn't import torch."""

import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

PHASES = ("propose", "compile", "forward", "verify", "commit")

P = ParamSpec("P")
R = TypeVar("R")


class Timed(Protocol):
    """An object that counts seconds by phase."""

    @property
    def seconds(self) -> dict[str, float]:
        """By phase."""


T = TypeVar("T", bound=Timed)


def timed(phase: str) -> Callable[[Callable[Concatenate[T, P], R]], Callable[Concatenate[T, P], R]]:
    """Decorate a function: its time is added to the phase of its first argument's ``seconds``."""

    def decorate(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
        @wraps(function)
        def run(first: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
            began = time.perf_counter()
            try:
                return function(first, *args, **kwargs)
            finally:
                first.seconds[phase] = first.seconds.get(phase, 0.0) + time.perf_counter() - began

        return run

    return decorate
