"""Compares a strategy with plain decoding, prompt by prompt, and classifies each difference as a tie or a defect.

Texts can differ for two reasons. In a *numeric tie*, the strategy's logits deviate by no more than the noise of the
model's own logits between passes of different shapes, and plain decoding's scores of the two tokens are no further
apart than this noise. Anything else is a *defect*: of a mask, a cache, a position or an acceptance rule. Bit-exact
numerics have no noise, so every difference of a bit is a defect, even if it changes no token.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specdec.apps.auditing.findings import Audit, Finding
from specdec.apps.comparison.differences import first_difference
from specdec.apps.comparison.prompts import EvaluationPrompt, as_chat, demo_prompts, named
from specdec.apps.comparison.ties import SLACK, ScoredText, judge, noise_along
from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.plugins.names import PROJECT
from specdec.plugins.registry import load_plugins
from specdec.sampling.processors import processor_name, stateful
from specdec.settings import Settings


def audit(
    generator: Generator,
    prompts: Sequence[EvaluationPrompt | Any] | None = None,
    *,
    seed: int = 0,
    chat: bool | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    **settings: Any,
) -> Audit:
    """Compare a generator's text and scores with plain decoding's in the same numerics.

    Args:
        generator: made as it is to be used, with any proposer, acceptance rule, mask or backend.
        prompts: text, token ids, chat messages or ``EvaluationPrompt``; the built-in ones where none are given.
        seed: of sampling; noise is keyed by position, so that texts must agree at any temperature.
        chat: True sends all texts through the tokenizer's chat template, False none; None only instructions, if there
            is a template.
        on_finding: called with each finding as it is made.
        settings: as for ``Generator.generate``.

    Raises:
        RequestError: for a rule that doesn't promise plain decoding's text, and for prompts that can't be served.
        SpecdecError: if the strategy fails.
    """
    given = Settings.make({"seed": seed, **settings})
    if names := ", ".join(map(processor_name, stateful(given))):
        raise RequestError(
            f"{names} may have state, which the two texts would share: give it is_path_pure = True if "
            "what it returns follows from its arguments alone"
        )
    rule = generator.verifier
    if not rule.lossless or not (rule.is_keyed or given.temperature == 0.0):
        raise RequestError(
            f"{type(rule).__name__} doesn't promise plain decoding's text "
            f"{'at any temperature' if not rule.lossless else 'above temperature 0, but its distribution'}: "
            "audit verifier='match', or decode at temperature 0"
        )
    # A custom mask may be at fault, so plain decoding uses a built-in one of the same numerics.
    mask, registry = generator.mask, load_plugins()
    built_in = [each.cls for each in registry.of_kind("masks") if each.distribution == PROJECT]
    if not (mask.bit_exact and type(mask) in built_in):
        choices = registry.compilers(generator.shapes.device, mask.bit_exact)
        mask = next(each for each in choices if type(each) in built_in)
    # Rounded weights make another model, with which the strategy is compared.
    weights = generator.weights.kernel if generator.weights.lossy else "auto"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with weights=", UserWarning)
        plain = Generator(generator.model, generator.tokenizer, proposer="autoregressive", mask=mask, weights=weights)
    with plain:
        pair = _Pair(generator, plain, given, {"seed": seed, **settings})
        findings: list[Finding] = []
        chosen = named(demo_prompts() if prompts is None else prompts)
        for prompt in as_chat(chosen, plain.tokenizer, chat):
            findings.append(pair.examine(prompt.name, prompt.prompt))
            if on_finding is not None:
                on_finding(findings[-1])
    return Audit(repr(generator.proposer), repr(rule), str(generator.numerics), tuple(findings))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The generator under audit, and a generator of plain decoding."""

    generator: Generator
    plain: Generator
    settings: Settings
    given: dict[str, Any]

    def examine(self, name: str, prompt: Any) -> Finding:
        """Return the finding about one prompt."""
        expected, text = (ScoredText.decode(each, prompt, self.given) for each in (self.plain, self.generator))
        index = first_difference(text.tokens, expected.tokens)
        agreed = len(text.tokens) if index is None else index
        noise = noise_along(self.plain, expected.prompt, expected.tokens[:agreed])
        deviations = _deviations(text, expected, agreed)
        finding = Finding(
            name,
            "identical",
            num_tokens=len(text.tokens),
            noise=float(noise[-1]),
            deviation=max(deviations.values(), default=None),
        )
        if index is not None:
            token, wanted = (own[index] if index < len(own) else None for own in (text.tokens, expected.tokens))
            until = replace(expected, tokens=expected.tokens[: index + 1])
            judged = judge(until, token, wanted, self.settings, float(noise[-1]), deviations.get(index))
            finding = replace(finding, position=index, token=token, expected=wanted, **asdict(judged))
        for place, deviation in deviations.items():
            if deviation > SLACK * float(noise[place]):
                seen = f"at new token {place} the strategy's scores differ by {deviation:.3g}"
                return replace(finding, verdict="defect", reason=f"{seen}; the noise is {float(noise[place]):.2g}")
        return finding


def _deviations(text: ScoredText, expected: ScoredText, agreed: int) -> dict[int, float]:
    """Return the largest score difference at each new token after the same text, where both are known."""
    found = {}
    for index in range(agreed + 1):
        mine, its = text.scores_at(index), expected.scores_at(index)
        if mine is not None and its is not None:
            found[index] = float((mine - its).abs().masked_fill(mine == its, 0.0).amax())
    return found
