"""The exact distribution of a random computation, which is run once for each combination of its random choices."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch

from specdec.sampling import RandomSource

T = TypeVar("T", bound=Hashable)
EXACT = 1e-12  # float64 rounding over a few thousand outcomes


class _Script:
    """A random source that follows given choices, and then takes the first possible one."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = list(choices)
        self.probability = 1.0
        self.num_made = 0
        self.alternatives: list[int] = []  # the possible choices after the script's end, by their number

    def accept(self, r: float, q: float) -> bool:
        probability = min(1.0, r / q) if q > 0.0 else float(r > 0.0)
        return self._choose([1.0 - probability, probability]) == 1

    def categorical(self, weights: torch.Tensor, position: int) -> int:
        values = weights.double().tolist()
        total = sum(values)
        return self._choose([value / total for value in values]) if total > 0.0 else 0

    def _choose(self, probs: Sequence[float]) -> int:
        possible = [index for index, probability in enumerate(probs) if probability > 0.0]
        if self.num_made == len(self.choices):
            self.choices.append(0)
            self.alternatives.append(len(possible))
        choice = possible[self.choices[self.num_made]]
        self.num_made += 1
        self.probability *= probs[choice]
        return choice


def outcomes(run: Callable[[RandomSource], T]) -> dict[T, float]:
    """Return the exact distribution of ``run``'s result, over all outcomes of its random source's two primitives.

    ``run`` is called once per outcome, so its result must depend on its random source alone.
    """
    probs: dict[T, float] = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        script = _Script(waiting.pop())
        result = run(script)
        probs[result] = probs.get(result, 0.0) + script.probability
        num_given = len(script.choices) - len(script.alternatives)
        for offset, count in enumerate(script.alternatives):
            fixed = script.choices[: num_given + offset]
            waiting += [[*fixed, other] for other in range(1, count)]
    return probs


def total_variation(probs: dict[T, float], other: dict[T, float]) -> float:
    """Return the total variation distance: the largest difference in probability of any event."""
    return sum(abs(probs.get(key, 0.0) - other.get(key, 0.0)) for key in probs.keys() | other.keys()) / 2
