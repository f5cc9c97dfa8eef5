"""The acceptance of heads by kind and amount of text, as measured on SmolLM2-135M-Instruct.

Source: benchmarks/notebook/2026-11-26-heads.md, with the runs head_smollm2_h100 and head_medusa_h200: 28 prompts that
were never trained on, the target's greedy answers, chains of draft tokens.
"""

from collections.abc import Mapping

import numpy as np

_Curve = Mapping[int, tuple[float, ...]]

# Answer tokens of the text, and acceptance by depth where all draft tokens before are accepted.
_EAGLE3: _Curve = {
    500_000: (0.37, 0.37, 0.38, 0.27, 0.28),
    1_000_000: (0.44, 0.46, 0.45, 0.40, 0.34),
    2_500_000: (0.53, 0.52, 0.56, 0.53, 0.50),
    5_000_000: (0.57, 0.58, 0.60, 0.58, 0.52),
    10_000_000: (0.61, 0.62, 0.65, 0.63, 0.53),
}
_CURVES: Mapping[str, _Curve] = {"eagle3": _EAGLE3, "medusa": {2_500_000: (0.32, 0.31, 0.30, 0.36, 0.44)}}
MEASURED_KINDS = tuple(_CURVES)


def expected_acceptance(kind: str, num_answer_tokens: int) -> tuple[float, ...]:
    """Return the acceptance by depth of a head of SmolLM2 that was trained on that much text.

    Linear in the logarithm of the number of tokens. Outside the points of another kind, its acceptance is assumed to
    grow as EAGLE-3's does; outside EAGLE-3's, none grows.

    Args:
        kind: one of ``MEASURED_KINDS``.
        num_answer_tokens: of the text.
    """
    curve = _CURVES[kind]
    inside = min(max(num_answer_tokens, min(curve)), max(curve))
    growth = _at(_EAGLE3, num_answer_tokens) / _at(_EAGLE3, inside)
    return tuple(np.minimum(_at(curve, inside) * growth, 1.0).tolist())


def nearest_measured(num_answer_tokens: int) -> int:
    """Return the number of answer tokens whose acceptance is taken: the given one, within EAGLE-3's points."""
    return min(max(num_answer_tokens, min(_EAGLE3)), max(_EAGLE3))


def _at(curve: _Curve, num_answer_tokens: int) -> np.ndarray:
    """Return the acceptance by depth; that of the first or last point outside of the curve."""
    where, points = np.log([*curve]), np.array([*curve.values()])
    return np.array([np.interp(np.log(max(num_answer_tokens, 1)), where, depth) for depth in points.T])
