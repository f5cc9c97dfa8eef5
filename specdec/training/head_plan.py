"""The plan of a head's training, and the tokens per step to expect of an EAGLE-3 head, as measured on SmolLM2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.training.acceptance_curves import CURVES, Point
from specdec.training.progress import Plan, TrainingPlan, rounded

_MEASURED = "eagle3"  # the kind whose growth with the text is known
_MOST_MINUTES = 2 * 24 * 60  # that are worth naming


@dataclass(frozen=True, slots=True)
class HeadPlan(TrainingPlan):
    """The training of a head.

    Attributes:
        strategy: the name of the strategy that drafts with it.
        label: its kind in words, with its article.
        reasons: lines on why this kind is trained; none if it was asked for.
    """

    strategy: str
    label: str
    reasons: Sequence[str] = ()

    def lines(self, plan: Plan) -> list[str]:
        training = (
            f"training: {self.label} for {rounded(plan.training_minutes, 3)} minutes; the head with the "
            "most tokens per step on held-out text is kept"
        )
        if self.strategy != _MEASURED:
            return [*self.reasons, training]
        expected = f"to expect: {_expectation(plan.num_answer_tokens, _minutes_for_least(plan))}"
        return [*self.reasons, training, expected]


def _minutes_for_least(plan: Plan) -> float:
    """Return the time for a run with the least text that was measured, with the same shares; infinite if unknown."""
    if not (plan.tokens_per_second and plan.text_minutes):
        return math.inf
    minutes = CURVES[_MEASURED][0].num_answer_tokens / plan.tokens_per_second / 60
    return minutes * (plan.text_minutes + plan.training_minutes) / plan.text_minutes


def _expectation(num_answer_tokens: int, minutes_for_least: float) -> str:
    """Return the tokens per step that a head of SmolLM2 reached with this much text, in words.

    Args:
        num_answer_tokens: of the text.
        minutes_for_least: minutes in which a run has the least text that was measured.
    """
    measure, plain = "tokens per step (chain of 5 draft tokens, held-out text)", "plain decoding has 1"
    reached = [point for point in CURVES[_MEASURED] if point.num_answer_tokens <= num_answer_tokens]
    if reached:
        found = reached[-1]
        return (
            f"about {found.held_out:.1f} {measure}, as SmolLM2's head reached after {_amount(found)}; {plain}, and "
            "larger models may gain more"
        )
    least, remedy = CURVES[_MEASURED][0], ""
    if minutes_for_least <= _MOST_MINUTES:
        remedy = f" (give about --minutes {math.ceil(minutes_for_least)})"
    return (
        f"fewer than {least.held_out:.1f} {measure}, which SmolLM2's head reached after {_amount(least)}{remedy}; "
        f"{plain}"
    )


def _amount(point: Point) -> str:
    return f"{rounded(point.num_answer_tokens, 3)} answer tokens"
