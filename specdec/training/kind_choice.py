"""The kind of head that a run trains: the one of highest predicted speed, unless it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.errors import SpecdecError
from specdec.training.acceptance_curves import CURVES, expected_acceptance, nearest_measured
from specdec.training.base import HeadTraining
from specdec.training.draft_costs import DraftCosts, measure_draft_costs
from specdec.training.head_plan import HeadPlan
from specdec.training.kinds import KINDS
from specdec.training.progress import rounded

_FALLBACK = "eagle3"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed of decoding with a head.

    Attributes:
        kind: of the head.
        num_draft_tokens: per step, of the chain that is fastest.
        tokens_per_step: accepted draft tokens, and one.
        draft_cost: of a draft, in plain steps.
        speed: in tokens per step over the step's whole cost; plain decoding has 1.
    """

    kind: str
    num_draft_tokens: int
    tokens_per_step: float
    draft_cost: float
    speed: float

    def __str__(self) -> str:
        return (
            f"{KINDS[self.kind].label}: {self.speed:.2f} times as fast as plain decoding, {self.tokens_per_step:.2f} "
            f"tokens per step on prompts (chain of {self.num_draft_tokens}), drafted in {self.draft_cost:.0%} of a step"
        )


def predict_speeds(costs: DraftCosts, num_answer_tokens: int) -> list[Prediction]:
    """Return the predicted speed of each kind in ``costs``, the fastest first.

    Args:
        costs: of steps and drafts on this machine.
        num_answer_tokens: of the text that the heads are trained on.

    >>> costs = DraftCosts([1.1, 1.2], {"eagle3": [0.1, 0.2], "medusa": [0.1, 0.1]})
    >>> [(each.kind, round(each.speed, 2), each.num_draft_tokens) for each in predict_speeds(costs, 2_500_000)]
    [('eagle3', 1.29, 2), ('medusa', 1.1, 1)]
    """
    return sorted((_fastest(kind, costs, num_answer_tokens) for kind in costs.drafts), key=lambda each: -each.speed)


def _fastest(kind: str, costs: DraftCosts, num_answer_tokens: int) -> Prediction:
    """Return the prediction for the best number of draft tokens."""
    found, tokens, path = list[Prediction](), 1.0, 1.0
    acceptance = expected_acceptance(kind, num_answer_tokens)
    for length, (rate, step, draft) in enumerate(zip(acceptance, costs.steps, costs.drafts[kind], strict=False), 1):
        path *= rate
        tokens += path
        found.append(Prediction(kind, length, tokens, draft, tokens / (step + draft)))
    return max(found, key=lambda each: each.speed)


class KindChoice:
    """Decides once which kind of head a run trains, when the amount of text is planned.

    Args:
        kind: the kind, if it is known; None for the one of highest predicted speed.
        why: the reason for a kind that is known, as a line of the plan; "" if it was asked for.
        costs: to predict speeds from; needed without ``kind``.
    """

    def __init__(self, kind: str | None, why: str = "", costs: DraftCosts | None = None) -> None:
        self._kind, self._lines, self._costs = kind, [why] if why else [], costs

    @classmethod
    def measured(cls, model: Any, draft_vocab_size: int) -> "KindChoice":
        """Return a choice among all kinds whose acceptance was measured, by their costs on this machine."""
        try:
            kinds = [KINDS[kind] for kind in CURVES]
            return cls(None, costs=measure_draft_costs(model, kinds, draft_vocab_size))
        except SpecdecError as error:
            return cls(_FALLBACK, f"kind: {KINDS[_FALLBACK].label}, as no speed can be predicted: {error}")

    def kind(self, num_answer_tokens: int) -> type[HeadTraining]:
        """Return the kind for a text of this size; later calls return that of the first."""
        if self._kind is None:
            assert self._costs is not None, "a kind is chosen by costs"
            self._lines = _lines(predictions := predict_speeds(self._costs, num_answer_tokens), num_answer_tokens)
            self._kind = predictions[0].kind
        return KINDS[self._kind]

    def plan(self, num_answer_tokens: int) -> HeadPlan:
        """Return the training of the kind for a text of this size, and why it was chosen."""
        kind = self.kind(num_answer_tokens)
        return HeadPlan(kind.strategy, kind.label, tuple(self._lines))


def _lines(predictions: Sequence[Prediction], num_answer_tokens: int) -> list[str]:
    best, *others = predictions
    nearest = nearest_measured(num_answer_tokens)
    measured = f"{rounded(nearest, 3)} answer tokens, the nearest measured"
    amount = "as much text" if nearest == num_answer_tokens else measured
    return [
        f"kind: {best}",
        *(f"not {other}" for other in others),
        f"predicted from SmolLM2's acceptance after {amount}, with steps and drafts timed on this machine; --kind "
        "overrides it",
    ]
