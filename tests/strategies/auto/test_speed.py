"""The tokens per second of all steps together, on simulated machines that pad passes to a few sizes."""

import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from specdec import DraftTree
from specdec.costs import Costs
from specdec.layout import Padding
from specdec.record import Outcome, StepRecord
from specdec.testing.fixed_growth import FixedGrowth
from tests.strategies.auto.test_sizer import Sized as SizedByCosts
from tests.strategies.auto.test_sizer import width_of

SECONDS = {1: 1.0, 6: 1.6, 8: 1.65, 12: 1.8}  # of a pass, by its size
# Acceptance probabilities of the candidates: without any, where little is known, where more is, where text is copied.
KINDS = (
    (),
    (0.3, 0.12, 0.06, 0.05, 0.04, *[0.02] * 6),
    (0.6, 0.36, 0.2, 0.13, 0.1, 0.08, *[0.05] * 5),
    tuple(0.93**depth for depth in range(1, 12)),
)


def texts(num_steps: int) -> list[int]:
    """The kind of each step; each lasts for five steps on average."""
    rng, kinds = random.Random(0), list[int]()
    while len(kinds) < num_steps:
        kinds += rng.choices(range(4), (1, 5, 3, 1)) * rng.randint(1, 9)
    return kinds


def tokens_per_second(
    kinds: Sequence[int], switch: float, sized: Callable[[int], tuple[int, int]], first: int = 200
) -> float:
    """Decode; ``sized`` returns the nodes of a step of a kind, and the size of its pass.

    A pass of another size than the last one takes ``switch`` longer. The ``first`` steps don't count.
    """
    last, num_tokens, spent = 1, 0.0, 0.0
    for step, kind in enumerate(kinds):
        width, size = sized(kind)
        if step >= first:
            num_tokens += 1.0 + sum(KINDS[kind][: width - 1])
            spent += SECONDS[size] + switch * (size != last)
        last = size
    return num_tokens / spent


class Sized:
    """The sizes that a sizer takes. At first it knows nothing about switches; it learns from the time of its steps."""

    def __init__(self, switch: float) -> None:
        measured = Costs(tuple(SECONDS), tuple(SECONDS.values()), 1.0, padding=Padding(tuple(SECONDS)))
        self.sizer, self._switch = SizedByCosts(measured, 12, 0.01), switch
        self._last, self._rest = 1, 0.0

    def __call__(self, kind: int) -> tuple[int, int]:
        width = width_of(self.sizer, [FixedGrowth(KINDS[kind], 11)])
        size = min(each for each in SECONDS if each >= width)
        expected = self._rest + sum(KINDS[kind][: width - 1])
        accepted, self._rest = int(expected), expected % 1.0
        tree = DraftTree(0)
        tree.add_chain(0, range(1, width))
        outcome = Outcome(None, tree=tree, tokens=(1,) * (1 + accepted))  # type: ignore[arg-type]
        seconds = {"forward": SECONDS[size] + self._switch * (size != self._last)}
        record = StepRecord("step", (outcome,), seconds, width=width)
        self.sizer.learn(record, (outcome,))
        self._last = size
        return width, size


@pytest.mark.parametrize("switch", [0.0])
def test_steps_are_as_fast_together_as_by_the_best_size_for_each_kind(switch: float) -> None:
    """Against every assignment of sizes to kinds of steps, known beforehand."""
    kinds = texts(1200)
    rules = product(SECONDS, repeat=len(KINDS))
    best = max(tokens_per_second(kinds, switch, lambda kind, rule=rule: (rule[kind],) * 2) for rule in rules)
    assert tokens_per_second(kinds, switch, Sized(switch)) >= 0.95 * best
