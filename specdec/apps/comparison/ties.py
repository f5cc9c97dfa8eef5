"""Classifies the difference between a text and plain decoding's as a numeric tie or a defect.

In a *numeric tie* plain decoding's scores of the two tokens are no further apart than the model's logits vary between
passes of different shapes. Any other difference is a *defect*, and so is every difference in bit-exact numerics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from specdec.apps.comparison.differences import Difference
from specdec.apps.comparison.noise import measure_noise
from specdec.apps.comparison.results import Comparison
from specdec.decoding.result import Result
from specdec.generator import Generator
from specdec.record import StepRecord
from specdec.requests.prompts import encode
from specdec.sampling.processors import warpers
from specdec.sampling.randomness import Randomness, seed_of_sample
from specdec.settings import Settings

# Noise is the maximum over a few pass shapes. Others may exceed it a little; a defect exceeds it by far.
SLACK = 4.0


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A prompt's ids, its new tokens, and the scores recorded while decoding, by length of the text."""

    prompt: list[int]
    tokens: tuple[int, ...]
    scores: dict[int, torch.Tensor]

    def scores_at(self, index: int) -> torch.Tensor | None:
        """The scores that decided new token ``index``; None if they weren't recorded."""
        return self.scores.get(len(self.prompt) + index)

    @classmethod
    def decode(cls, generator: Generator, prompt: Any, settings: Mapping[str, Any]) -> "ScoredText":
        """Decode a prompt in any form, chats until their turn ends, and record the scores of its steps."""
        ids = encode(prompt, generator.tokenizer, generator.vocab_size)
        length, scores = len(ids), dict[int, torch.Tensor]()

        def note(record: StepRecord) -> None:
            nonlocal length
            for outcome in record.outcomes:
                known = enumerate(outcome.scores, length)
                scores.update((place, shown) for place, shown in known if shown is not None)
                length += len(outcome.tokens)

        result: Result = generator.generate(prompt, on_step=note, **{**settings, "keeps_scores": True})
        return cls(ids, result.token_ids, scores)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on two tokens at one place; ``scores`` are plain decoding's, of the strategy's token first."""

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
    """Judge the first token that differs from plain decoding's.

    Args:
        plain: plain decoding's text; ``expected`` is its last token.
        token, expected: the strategy's token and plain decoding's, None where a text has ended.
        noise: noise of the model's logits there; 0 in bit-exact numerics.
        deviation: maximum deviation of the strategy's own scores there; None if they weren't recorded.
    """
    if token is None or expected is None:
        return Judgement("defect", "one text ends where the other continues")
    index = len(plain.tokens) - 1
    decided = _decided_by(plain, index, settings)
    scores = float(decided[token]), float(decided[expected])
    if scores[0] == -math.inf:  # removed by a processor: compare with the lowest score that remains
        shown = plain.scores[len(plain.prompt) + index]
        scores = float(shown[token]), float(shown[decided > -math.inf].min())
    margin, reach = scores[1] - scores[0], SLACK * noise if deviation is None else 2 * deviation
    if margin <= reach and noise > 0:
        reason = f"the two scores are {margin:.2g} apart, and the noise is {noise:.2g}"
        return Judgement("numeric tie", reason, scores, margin)
    saw = f"noise is {noise:.2g}" if deviation is None else f"the strategy's scores deviate by up to {reach / 2:.2g}"
    return Judgement("defect", f"the model scores the token {margin:.3g} lower, and {saw}", scores, margin)


def noise_along(plain: Generator, prompt: Sequence[int], agreed: Sequence[int]) -> torch.Tensor:
    """The noise at each new token up to the first that differs; zeros in bit-exact numerics."""
    from transformers import PreTrainedModel

    model = plain.model
    if plain.numerics.is_bit_exact or not isinstance(model, PreTrainedModel):
        return torch.zeros(len(agreed) + 1)
    noise = measure_noise(model, [*prompt, *agreed], len(prompt) - 1)
    return noise.clamp_min(plain.numerics.noise / 2)  # trees vary logits more than the passes measured here


def examine_differences(
    comparison: Comparison,
    generators: Mapping[str, Generator],
    settings: Mapping[str, Any],
    ends: Mapping[int, Sequence[int]],
) -> None:
    """Judge each difference of a comparison; after Ctrl-C the rest stay without a verdict.

    ``ends`` has the ends of text of prompts that are chats.
    """
    known: dict[tuple[Any, ...], Judgement] = {}
    try:
        for place, found in enumerate(comparison.differences):
            name, given = comparison.plan.reference_of(found.strategy), dict(settings)
            if found.prompt in ends:  # which ``min_new_tokens`` suppresses
                given.setdefault("eos_token_id", ends[found.prompt])
            given["seed"] = seed_of_sample(comparison.plan.seed, found.repeat)
            # Greedy repeats are equal, and are examined once.
            draws = given["seed"] if Settings.make(given).temperature else None
            key = (name, found.prompt, draws, found.agreed, found.token, found.expected)
            if key not in known:
                known[key] = _examined(found, list(comparison.plan.prompts[found.prompt][2]), generators[name], given)
            own = known[key]
            comparison.differences[place] = replace(found, verdict=own.verdict, reason=own.reason, margin=own.margin)
    except KeyboardInterrupt:
        return


def _examined(found: Difference, prompt: list[int], plain: Generator, given: dict[str, Any]) -> Judgement:
    """Decode plainly up to the difference again, and judge it by the scores there."""
    text = ScoredText.decode(plain, prompt, {**given, "max_new_tokens": found.position + 1})
    if found.expected is not None and text.tokens != (*found.agreed, found.expected):
        return Judgement("defect", "plain decoding wrote another text when repeated")
    noise = float(noise_along(plain, prompt, found.agreed)[-1])
    return judge(text, found.token, found.expected, Settings.make(given), noise, None)


def _decided_by(text: ScoredText, index: int, settings: Settings) -> torch.Tensor:
    """The scores whose maximum plain decoding emits, in units of logits, float64."""
    path, scores = [*text.prompt, *text.tokens[:index]], text.scores[len(text.prompt) + index]
    ids = torch.tensor([path])
    for processor in warpers(settings):
        scores = processor(ids, scores[None])[0]
    scores = scores.double()
    if settings.temperature == 0.0:
        return scores
    noise = Randomness(settings.seed or 0).gumbel(len(path), len(scores))
    return (scores.softmax(-1).log() + noise) * settings.temperature
