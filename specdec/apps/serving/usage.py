"""The figures of speculation for a text: by position, how often a token was drafted and how often it was accepted."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from specdec.record import Outcome
from specdec.strategies.sources.reference import NAME as REFERENCE
from specdec.tree import Role


@dataclass(slots=True)
class Figures:
    """Counts over the steps of one text or several texts.

    Attributes:
        drafted: by position after the last token, the number of steps whose draft had a candidate there.
        accepted: by position, the number of steps in which a candidate was accepted there.
        num_predicted: draft tokens that a prediction proposed.
        num_predicted_right: accepted ones of these.
        num_copied: prompt tokens whose keys and values were copied from the prefix cache.
    """

    num_steps: int = 0
    num_tokens: int = 0
    num_copied: int = 0
    num_predicted: int = 0
    num_predicted_right: int = 0
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def note(self, outcome: Outcome) -> None:
        """Add a step."""
        if not outcome.tokens:
            return
        self.num_steps += 1
        self.num_tokens += len(outcome.tokens)
        self.num_copied = outcome.request.num_reused
        if outcome.tree is not None:
            predicted = {node for node, names in outcome.tree.proposed_by.items() if REFERENCE in names}
            self.num_predicted += len(predicted)
            self.num_predicted_right += len(predicted.intersection(outcome.path))
        self.drafted.update(range(depth_of(outcome)))
        self.accepted.update(range(outcome.num_accepted_tokens))

    @classmethod
    def of(cls, several: Iterable[Self]) -> Self:
        """Return the sum over several texts."""
        total = cls()
        for one in several:
            total.num_steps += one.num_steps
            total.num_tokens += one.num_tokens
            total.num_copied += one.num_copied
            total.num_predicted += one.num_predicted
            total.num_predicted_right += one.num_predicted_right
            total.drafted.update(one.drafted)
            total.accepted.update(one.accepted)
        return total

    def of_prediction(self) -> dict[str, int]:
        """Return the counts of a prediction's tokens, as in OpenAI's ``completion_tokens_details``."""
        return {
            "accepted_prediction_tokens": self.num_predicted_right,
            "rejected_prediction_tokens": self.num_predicted - self.num_predicted_right,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as in an answer's ``usage``."""
        return {
            "steps": self.num_steps,
            "tokens_per_step": round(self.num_tokens / self.num_steps, 4) if self.num_steps else 0.0,
            "drafted_by_position": [self.drafted[position] for position in range(len(self.drafted))],
            "accepted_by_position": [self.accepted[position] for position in range(len(self.drafted))],
        }


def depth_of(outcome: Outcome) -> int:
    """Return the deepest position of a draft's candidates; 0 without candidates."""
    tree = outcome.tree
    return 0 if tree is None else max((tree.depths[node] for node in tree.nodes_with(Role.CANDIDATE)), default=0)
