"""The exact distribution of a random computation: run it once for every way its choices can fall."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from specdec.sampling.randomness import RandomSource

T = TypeVar("T", bound=Hashable)
EXACT = 1e-12  # float64 rounding over a few thousand outcomes


class _Script:
    """Chances whose choices are given in advance, and where they run out, the first possible one."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = list(choices)
        self.probability = 1.0
        self.num_made = 0
        self.alternatives: list[int] = []  # the possible choices after the script's end, by their number

    def accept(self, r: float, q: float) -> bool:
        chance = min(1.0, r / q) if q > 0.0 else float(r > 0.0)
        return self._choose([1.0 - chance, chance]) == 1

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        total = float(weights.double().sum())
        return self._choose((weights.double() / total).tolist()) if total > 0.0 else 0

    def _choose(self, law: Sequence[float]) -> int:
        possible = [index for index, chance in enumerate(law) if chance > 0.0]
        if self.num_made == len(self.choices):
            self.choices.append(0)
            self.alternatives.append(len(possible))
        choice = possible[self.choices[self.num_made]]
        self.num_made += 1
        self.probability *= law[choice]
        return choice


def outcomes(run: Callable[[RandomSource], T]) -> dict[T, float]:
    """The exact distribution of what ``run`` returns, over all outcomes of the two random primitives that it is given.

    The function is run once per outcome, so it must depend on its random source alone.
    """
    law: dict[T, float] = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        script = _Script(waiting.pop())
        result = run(script)
        law[result] = law.get(result, 0.0) + script.probability
        num_given = len(script.choices) - len(script.alternatives)
        for offset, count in enumerate(script.alternatives):
            fixed = script.choices[: num_given + offset]
            waiting += [[*fixed, other] for other in range(1, count)]
    return law


def total_variation(law: dict[T, float], other: dict[T, float]) -> float:
    """Half the sum of absolute differences: the largest difference in probability of any event."""
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys()) / 2
