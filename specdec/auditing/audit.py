"""Decode with a strategy and plainly; say of each prompt whether the texts agree, and whether a difference is rounding.

Texts can differ for two reasons. In a *numeric tie* what the strategy saw lies within the noise that the model's own
logits show between passes of different shapes, and that much explains the other token: plain decoding's scores of the
two are no further apart. Anything else is a *defect*: of a mask, a cache, a position or an acceptance rule. Where
numerics are bit-exact there is no noise, and every difference of a bit is a defect, also one that no token shows.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec.auditing.findings import Audit, Finding
from specdec.auditing.noise import measure_noise
from specdec.comparison.prompts import EvaluationPrompt, demo_prompts, named
from specdec.comparison.results import first_difference
from specdec.decoding.record import StepRecord
from specdec.decoding.result import Result
from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.requests.prompts import encode
from specdec.sampling.processors import warpers
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings

# Noise is the greatest of a few differences seen; another shape of pass may well go beyond, a defect goes far beyond.
_SLACK = 4.0


def audit(
    generator: Generator,
    prompts: Sequence[EvaluationPrompt | Any] | None = None,
    *,
    seed: int = 0,
    on_finding: Callable[[Finding], None] | None = None,
    **settings: Any,
) -> Audit:
    """Hold a generator's text, and the scores behind it, against plain decoding's in the same numerics.

    Args:
        generator: made as it is to be used, with any proposer, acceptance rule, mask or backend.
        prompts: text, token ids, chat messages or ``EvaluationPrompt``; the built-in ones where none are given.
        seed: of sampling; noise is keyed by position, so that texts must agree at any temperature.
        on_finding: called with each finding as it is made.
        settings: as for ``Generator.generate``.

    Raises:
        RequestError: for a rule that doesn't promise plain decoding's text, and for prompts that can't be served.
        SpecdecError: where the strategy fails.
    """
    given = Settings.make({"seed": seed, **settings})
    rule = generator.verifier
    if not rule.lossless or not (rule.is_keyed or given.temperature == 0.0):
        raise RequestError(
            f"{type(rule).__name__} doesn't promise plain decoding's text "
            f"{'at any temperature' if not rule.lossless else 'above temperature 0, but its distribution'}: "
            "audit verifier='match', or decode at temperature 0"
        )
    # A mask of its own may be at fault, so plain decoding has the built-in one of the same numerics.
    mask = ExactCompiler() if isinstance(generator.compiler, ExactCompiler) else DenseCompiler()
    # Rounded weights are another model, which the strategy is held against; that they are lossy was said already.
    weights = generator.weights.kernel if generator.weights.lossy else "auto"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with weights=", UserWarning)
        plain = Generator(generator.model, generator.tokenizer, proposer="autoregressive", mask=mask, weights=weights)
    with plain:
        pair = _Pair(generator, plain, given, {"seed": seed, **settings})
        findings: list[Finding] = []
        for prompt in named(demo_prompts() if prompts is None else prompts):
            findings.append(pair.examine(prompt.name, prompt.prompt))
            if on_finding is not None:
                on_finding(findings[-1])
    return Audit(repr(generator.proposer), repr(rule), str(generator.numerics), tuple(findings))


@dataclass(frozen=True, slots=True)
class _Text:
    """A prompt's ids and new tokens, and the scores that were seen on the way, by length of text."""

    prompt: list[int]
    tokens: tuple[int, ...]
    scores: dict[int, torch.Tensor]

    def scores_at(self, index: int) -> torch.Tensor | None:
        """Return the scores that new token ``index`` was decided by, None where they weren't seen."""
        return self.scores.get(len(self.prompt) + index)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A generator under audit, and plain decoding."""

    generator: Generator
    plain: Generator
    settings: Settings
    given: dict[str, Any]

    def examine(self, name: str, prompt: Any) -> Finding:
        """One prompt's finding."""
        ids = encode(prompt, self.plain.tokenizer, self.plain.vocab_size)
        expected, text = self._decode(self.plain, ids), self._decode(self.generator, ids)
        index = first_difference(text.tokens, expected.tokens)
        agreed = len(text.tokens) if index is None else index
        noise = self._noise(expected, agreed)
        deviations = _deviations(text, expected, agreed)
        finding = Finding(
            name,
            "identical",
            num_tokens=len(text.tokens),
            noise=float(noise[-1]),
            deviation=max(deviations.values(), default=None),
        )
        if index is not None:
            finding = self._told(finding, text, expected, index, deviations.get(index))
        for place, deviation in deviations.items():
            if deviation > _SLACK * float(noise[place]):
                seen = f"at new token {place} the strategy saw scores that differ by {deviation:.3g}"
                return replace(finding, verdict="defect", reason=f"{seen}, where noise is {float(noise[place]):.2g}")
        return finding

    def _told(self, finding: Finding, text: _Text, expected: _Text, index: int, deviation: float | None) -> Finding:
        """Return the finding, completed by what is to be said of the first token that differs.

        ``deviation``: by how much the strategy's scores deviate there; None where that isn't known.
        """
        token, wanted = (tokens[index] if index < len(tokens) else None for tokens in (text.tokens, expected.tokens))
        finding = replace(finding, position=index, token=token, expected=wanted)
        if token is None or wanted is None:
            return replace(finding, verdict="defect", reason="one text ends where the other goes on")
        decided, noise = self._decided_by(expected, index), finding.noise or 0.0
        scores = float(decided[token]), float(decided[wanted])
        if scores[0] == -math.inf:  # cut off for plain decoding: by how much?
            shown = expected.scores[len(expected.prompt) + index]
            scores = float(shown[token]), float(shown[decided > -math.inf].min())
        margin, reach = scores[1] - scores[0], _SLACK * noise if deviation is None else 2 * deviation
        finding = replace(finding, scores=scores, margin=margin)
        if margin <= reach and noise > 0:
            reason = f"the two scores lie {margin:.2g} apart, where noise is {noise:.2g}"
            return replace(finding, verdict="numeric tie", reason=reason)
        reason = f"the model scores the token {margin:.3g} lower, and the strategy saw scores within {reach / 2:.2g}"
        return replace(finding, verdict="defect", reason=reason)

    def _decode(self, generator: Generator, ids: list[int]) -> _Text:
        """A prompt's text, and the scores that it was decided by, as the records of its steps tell them."""
        length, scores = len(ids), dict[int, torch.Tensor]()

        def note(record: StepRecord) -> None:
            nonlocal length
            for outcome in record.outcomes:
                known = enumerate(outcome.scores, length)
                scores.update((place, shown) for place, shown in known if shown is not None)
                length += len(outcome.tokens)

        result: Result = generator.generate(ids, on_step=note, **{**self.given, "keeps_scores": True})
        return _Text(ids, result.token_ids, scores)

    def _noise(self, text: _Text, agreed: int) -> torch.Tensor:
        """The noise at each new token up to the first that differs; none where bits are promised."""
        from transformers import PreTrainedModel

        model = self.plain.model
        if self.plain.numerics.is_bit_exact or not isinstance(model, PreTrainedModel):
            return torch.zeros(agreed + 1)
        noise = measure_noise(model, [*text.prompt, *text.tokens[:agreed]], len(text.prompt) - 1)
        return noise.clamp_min(self.plain.numerics.noise / 2)  # trees move logits more than the passes tried here

    def _decided_by(self, text: _Text, index: int) -> torch.Tensor:
        """Return the scores that plain decoding took the greatest of, in units of logits, float64."""
        path, scores = [*text.prompt, *text.tokens[:index]], text.scores[len(text.prompt) + index]
        ids = torch.tensor([path])
        for processor in warpers(self.settings):
            scores = processor(ids, scores[None])[0]
        scores = scores.double()
        if self.settings.temperature == 0.0:
            return scores
        noise = Randomness(self.settings.seed or 0).gumbel(len(path), len(scores))
        return (scores.softmax(-1).log() + noise) * self.settings.temperature


def _deviations(text: _Text, expected: _Text, agreed: int) -> dict[int, float]:
    """The greatest difference of a score at each new token that has the same text before it, where both are known."""
    found = {}
    for index in range(agreed + 1):
        mine, its = text.scores_at(index), expected.scores_at(index)
        if mine is not None and its is not None:
            found[index] = float((mine - its).abs().masked_fill(mine == its, 0.0).amax())
    return found
