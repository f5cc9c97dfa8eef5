"""Tell a numeric tie from a defect where a text leaves plain decoding's: one judgement for audits and comparisons.

In a *numeric tie* plain decoding's scores of the two tokens are no further apart than the model's own logits move
between passes of different shapes. Anything else is a *defect*. Where numerics are bit-exact there is no noise, and
every difference is one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from specdec.comparison.noise import measure_noise
from specdec.comparison.results import Comparison, Difference
from specdec.decoding.result import Result
from specdec.generator import Generator
from specdec.record import StepRecord
from specdec.sampling.processors import warpers
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings

# Noise is the greatest of a few differences seen; another shape of pass may well go beyond, a defect goes far beyond.
SLACK = 4.0


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A prompt's ids and new tokens, and the scores that were seen on the way, by length of text."""

    prompt: list[int]
    tokens: tuple[int, ...]
    scores: dict[int, torch.Tensor]

    def scores_at(self, index: int) -> torch.Tensor | None:
        """Return the scores that new token ``index`` was decided by, None where they weren't seen."""
        return self.scores.get(len(self.prompt) + index)

    @classmethod
    def decode(cls, generator: Generator, ids: list[int], given: Mapping[str, Any]) -> "ScoredText":
        """A prompt's text, and the scores that it was decided by, as the records of its steps tell them."""
        length, scores = len(ids), dict[int, torch.Tensor]()

        def note(record: StepRecord) -> None:
            nonlocal length
            for outcome in record.outcomes:
                known = enumerate(outcome.scores, length)
                scores.update((place, shown) for place, shown in known if shown is not None)
                length += len(outcome.tokens)

        result: Result = generator.generate(ids, on_step=note, **{**given, "keeps_scores": True})
        return cls(ids, result.token_ids, scores)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on two tokens at one place; ``scores`` are what plain decoding decided by, the strategy's first."""

    verdict: Literal["numeric tie", "defect"]
    reason: str
    scores: tuple[float, float] | None = None
    margin: float | None = None


def judge(
    plain: ScoredText,
    token: int | None,
    expected: int | None,
    settings: Settings,
    noise: float,
    deviation: float | None,
) -> Judgement:
    """Judge the first token that isn't plain decoding's.

    Args:
        plain: plain decoding's text, which agrees up to ``expected``, its last token that counts here.
        token, expected: the strategy's and plain decoding's, None where a text had ended.
        noise: of the model's logits at that place; 0 where bits are promised.
        deviation: by how much the strategy's own scores deviate there; None where they weren't seen.
    """
    if token is None or expected is None:
        return Judgement("defect", "one text ends where the other goes on")
    index = len(plain.tokens) - 1
    decided = _decided_by(plain, index, settings)
    scores = float(decided[token]), float(decided[expected])
    if scores[0] == -math.inf:  # cut off for plain decoding: by how much?
        shown = plain.scores[len(plain.prompt) + index]
        scores = float(shown[token]), float(shown[decided > -math.inf].min())
    margin, reach = scores[1] - scores[0], SLACK * noise if deviation is None else 2 * deviation
    if margin <= reach and noise > 0:
        reason = f"the two scores lie {margin:.2g} apart, where noise is {noise:.2g}"
        return Judgement("numeric tie", reason, scores, margin)
    saw = f"noise is {noise:.2g}" if deviation is None else f"the strategy saw scores within {reach / 2:.2g}"
    return Judgement("defect", f"the model scores the token {margin:.3g} lower, and {saw}", scores, margin)


def noise_along(plain: Generator, prompt: Sequence[int], agreed: Sequence[int]) -> torch.Tensor:
    """The noise at each new token up to the first that differs; none where bits are promised."""
    from transformers import PreTrainedModel

    model = plain.model
    if plain.numerics.is_bit_exact or not isinstance(model, PreTrainedModel):
        return torch.zeros(len(agreed) + 1)
    noise = measure_noise(model, [*prompt, *agreed], len(prompt) - 1)
    return noise.clamp_min(plain.numerics.noise / 2)  # trees move logits more than the passes tried here


def judged(comparison: Comparison, generators: Mapping[str, Generator], settings: Mapping[str, Any]) -> None:
    """Tell of each difference of a comparison what it is; an interrupt leaves the rest as they are."""
    known: dict[tuple[Any, ...], Difference] = {}
    try:
        for place, found in enumerate(comparison.differences):
            name, given = comparison.plan.reference_of(found.strategy), dict(settings)
            given["seed"] = comparison.plan.seed + found.repeat
            # Greedy repeats differ in the same way, and are examined once.
            draws = given["seed"] if Settings.make(given).temperature else None
            key = (name, found.prompt, draws, found.agreed, found.token, found.expected)
            if key not in known:
                known[key] = _examined(found, list(comparison.plan.prompts[found.prompt][2]), generators[name], given)
            own = {field: getattr(known[key], field) for field in ("verdict", "reason", "margin")}
            comparison.differences[place] = replace(found, **own)
    except KeyboardInterrupt:
        return


def _examined(found: Difference, prompt: list[int], plain: Generator, given: dict[str, Any]) -> Difference:
    """The same, judged: plain decoding goes there once more, and its scores are looked at."""
    text = ScoredText.decode(plain, prompt, {**given, "max_new_tokens": found.position + 1})
    if found.expected is not None and text.tokens != (*found.agreed, found.expected):
        return replace(found, verdict="defect", reason="plain decoding itself wrote another text the second time")
    noise = float(noise_along(plain, prompt, found.agreed)[-1])
    told = judge(text, found.token, found.expected, Settings.make(given), noise, None)
    return replace(found, verdict=told.verdict, reason=told.reason, margin=told.margin)


def _decided_by(text: ScoredText, index: int, settings: Settings) -> torch.Tensor:
    """Return the scores that plain decoding took the greatest of, in units of logits, float64."""
    path, scores = [*text.prompt, *text.tokens[:index]], text.scores[len(text.prompt) + index]
    ids = torch.tensor([path])
    for processor in warpers(settings):
        scores = processor(ids, scores[None])[0]
    scores = scores.double()
    if settings.temperature == 0.0:
        return scores
    noise = Randomness(settings.seed or 0).gumbel(len(path), len(scores))
    return (scores.softmax(-1).log() + noise) * settings.temperature
