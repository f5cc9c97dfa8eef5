"""The first place where a strategy's text differs from plain decoding's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specdec.apps.comparison.runs import ComparisonPlan, Run, RunKey


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of a text that differs from plain decoding in the same numerics.

    ``agreed`` are the new tokens before it. ``token`` and ``expected`` are the strategy's token there and plain
    decoding's, None where the text has ended. ``verdict`` is None until ``ties.examine_differences`` judges it, and
    ``reason`` says why. ``margin`` is plain decoding's score of ``expected`` minus that of ``token``, if known.
    """

    strategy: str
    prompt: int
    repeat: int
    agreed: tuple[int, ...]
    token: int | None
    expected: int | None
    verdict: Literal["numeric tie", "defect"] | None = None
    reason: str = ""
    margin: float | None = None

    @property
    def position(self) -> int:
        """The number of new tokens before it."""
        return len(self.agreed)


def find_differences(
    plan: ComparisonPlan, runs: Mapping[RunKey, Run], pairs: Iterable[tuple[int, int]]
) -> list[Difference]:
    """Compare every text with plain decoding's, for strategies whose rule promises its tokens.

    Args:
        pairs: prompts and repeats that every strategy has run.
    """
    found, pairs = [], list(pairs)
    for name, promise in plan.promises.items():
        is_exact = not plan.inexact[name]
        for prompt, repeat in pairs if promise == "tokens" else ():
            own, plain = (runs[each, prompt, repeat].tokens for each in (name, plan.reference_of(name)))
            place = first_difference(own, plain)
            if place is not None:
                token, expected = (text[place] if place < len(text) else None for text in (own, plain))
                difference = Difference(name, prompt, repeat, plain[:place], token, expected)
                if is_exact:
                    difference = replace(difference, verdict="defect", reason="numerics are bit-exact")
                found.append(difference)
    return found


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first index at which two texts differ; None if they are equal."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return None if len(first) == len(second) else min(len(first), len(second))
