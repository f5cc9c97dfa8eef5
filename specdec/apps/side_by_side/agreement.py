"""Checks whether an answer equals transformers' token for token; a difference is a numeric tie or a defect."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["same", "numeric tie", "defect"]
SAME: Literal["same"] = "same"


@dataclass(frozen=True, slots=True)
class Agreement:
    """The verdict on one answer; ``position`` is the first new token that differs, and ``reason`` explains it."""

    verdict: Kind
    position: int | None = None
    reason: str = ""


def agreement(model: Any, prompt: Sequence[int], expected: Sequence[int], found: Sequence[int]) -> Agreement:
    """Compare an answer with transformers'; a difference is judged by transformers' own logits at that place.

    Args:
        model: the transformers model, with a greedy generation config.
        expected: transformers' new tokens.
        found: the other answer's.
    """
    from specdec.apps.comparison.differences import first_difference
    from specdec.apps.comparison.noise import measure_noise
    from specdec.apps.comparison.ties import ScoredText, judge
    from specdec.models.gradients import own_logits
    from specdec.settings import Settings

    place = first_difference(found, expected)
    if place is None:
        return Agreement(SAME)
    agreed = list(expected[:place])
    logits = own_logits(model, [[*prompt, *agreed]], last=1)[0, -1].cpu()
    noise = float(measure_noise(model, [*prompt, *agreed], len(prompt) - 1)[-1])
    token, wanted = (own[place] if place < len(own) else None for own in (found, expected))
    scored = ScoredText(list(prompt), tuple(expected[: place + 1]), {len(prompt) + place: logits})
    judged = judge(scored, token, wanted, Settings(), noise, None)
    return Agreement(judged.verdict, place, judged.reason)
