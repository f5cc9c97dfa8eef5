"""The plan of a head's training, and the tokens per step to expect of an EAGLE-3 head, as measured on SmolLM2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.training.progress import Plan, TrainingPlan

_MEASURED = "eagle3"
# Answer tokens, and tokens per step of trees with 8 nodes on prompts that were never trained on:
# benchmarks/notebook/2026-11-26-heads.md; the first is of two cores.
_CURVE = (240_000, 1.7), (500_000, 1.8), (1_000_000, 2.0), (2_500_000, 2.3), (5_000_000, 2.4), (10_000_000, 2.6)
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
            f"training: {self.label} for {plan.training_minutes:.3g} minutes; the best by accepted length on held-out "
            "text is kept"
        )
        if self.strategy != _MEASURED:
            return [*self.reasons, training]
        expected = f"to expect: {_expectation(plan.num_answer_tokens, _minutes_for_least(plan))}"
        return [*self.reasons, training, expected]


def _minutes_for_least(plan: Plan) -> float:
    """Return the time for a run with the least text that was measured, with the same shares; infinite if unknown."""
    if not (plan.tokens_per_second and plan.text_minutes):
        return math.inf
    minutes = _CURVE[0][0] / plan.tokens_per_second / 60
    return minutes * (plan.text_minutes + plan.training_minutes) / plan.text_minutes


def _expectation(num_answer_tokens: int, minutes_for_least: float) -> str:
    """Return the tokens per step that a head of SmolLM2 reached with this much text, in words.

    Args:
        num_answer_tokens: of the text.
        minutes_for_least: minutes in which a run has the least text that was measured.
    """
    reached = [point for point in _CURVE if point[0] <= num_answer_tokens]
    if reached:
        tokens, gained = reached[-1]
        return (
            f"about {gained} tokens per step in trees of 8 nodes, where plain decoding has 1: SmolLM2's head reached "
            f"that after {_millions(tokens)}, and 0.2 more after each doubling; larger models may gain more"
        )
    (tokens, gained), remedy = _CURVE[0], ""
    if minutes_for_least <= _MOST_MINUTES:
        remedy = f"; give about --minutes {math.ceil(minutes_for_least)} for that"
    return (
        f"little: the least text that a head was measured with is {_millions(tokens)}, after which SmolLM2's head "
        f"reached {gained} tokens per step in trees of 8 nodes, where plain decoding has 1{remedy}"
    )


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:g} million answer tokens"
