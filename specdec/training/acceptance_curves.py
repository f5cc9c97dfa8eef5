"""The acceptance of heads by kind and amount of text, as measured on SmolLM2-135M-Instruct.

Source: benchmarks/notebook/2026-11-26-heads.md, with the runs head_smollm2_h100 and head_medusa_h200: 28 prompts that
were never trained on, and the target's greedy answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Point:
    """The acceptance of a head's drafts after some training.

    Attributes:
        num_answer_tokens: of the text that the head was trained on.
        held_out: tokens per step in chains of 5 on held-out text of the target, as a training reports them.
        chain: acceptance in chains by depth on prompts, given that all draft tokens before are accepted.
    """

    num_answer_tokens: int
    held_out: float
    chain: tuple[float, ...]


CURVES: Mapping[str, Sequence[Point]] = {
    "eagle3": (
        Point(500_000, 1.80, (0.37, 0.37, 0.38, 0.27, 0.28)),
        Point(1_000_000, 2.25, (0.44, 0.46, 0.45, 0.40, 0.34)),
        Point(2_500_000, 2.71, (0.53, 0.52, 0.56, 0.53, 0.50)),
        Point(5_000_000, 2.99, (0.57, 0.58, 0.60, 0.58, 0.52)),
        Point(10_000_000, 3.16, (0.61, 0.62, 0.65, 0.63, 0.53)),
    ),
    "medusa": (
        Point(2_500_000, 1.61, (0.32, 0.31, 0.30, 0.36, 0.44)),
        Point(3_700_000, 1.68, (0.34, 0.31, 0.33, 0.38, 0.55)),
    ),
}
_REFERENCE = "eagle3"  # the kind that was measured after several amounts of text


def expected_acceptance(kind: str, num_answer_tokens: int) -> tuple[float, ...]:
    """Return the acceptance by depth of a head of SmolLM2 that was trained on that much text.

    Linear in the logarithm of the number of tokens. Outside the points of another kind, its acceptance is assumed to
    grow as EAGLE-3's does; outside EAGLE-3's, none grows.

    Args:
        kind: one of ``CURVES``.
        num_answer_tokens: of the text.
    """
    inside = _within(_chains(kind), num_answer_tokens)
    growth = _at(_REFERENCE, num_answer_tokens) / _at(_REFERENCE, inside)
    return tuple(np.minimum(_at(kind, inside) * growth, 1.0).tolist())


def nearest_measured(num_answer_tokens: int) -> int:
    """Return the number of answer tokens whose acceptance is taken: the given one, within EAGLE-3's points."""
    return _within(_chains(_REFERENCE), num_answer_tokens)


def _chains(kind: str) -> Mapping[int, tuple[float, ...]]:
    """Return the acceptance by depth by number of answer tokens."""
    return {point.num_answer_tokens: point.chain for point in CURVES[kind]}


def _within(curve: Mapping[int, object], num_answer_tokens: int) -> int:
    return min(max(num_answer_tokens, min(curve)), max(curve))


def _at(kind: str, num_answer_tokens: int) -> np.ndarray:
    """Return the acceptance by depth; that of the first or last point outside of the curve."""
    curve = _chains(kind)
    where, points = np.log([*curve]), np.array([*curve.values()])
    return np.array([np.interp(np.log(max(num_answer_tokens, 1)), where, depth) for depth in points.T])
