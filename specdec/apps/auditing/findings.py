"""The findings of an audit, prompt by prompt."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["identical", "numeric tie", "defect"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one prompt's text with plain decoding's.

    Attributes:
        position: the index of the first new token that differs.
        token, expected: the strategy's token and plain decoding's at that position; None if a text had ended.
        scores: plain decoding's scores of these two tokens.
        margin: the score of ``expected`` minus that of ``token``.
        noise: how much the model's own logits at that position vary between passes of different shapes.
        deviation: the largest difference of a logit between strategy and plain decoding at any position that both
            committed; None if the rule can't be observed.
    """

    prompt: str
    verdict: Verdict
    num_tokens: int
    reason: str = ""
    position: int | None = None
    token: int | None = None
    expected: int | None = None
    scores: tuple[float, float] | None = None
    margin: float | None = None
    noise: float | None = None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of a strategy: what was used to decode, and a finding for each prompt."""

    strategy: str
    verifier: str
    numerics: str
    findings: tuple[Finding, ...]

    @property
    def defects(self) -> tuple[Finding, ...]:
        """The findings with the verdict "defect"."""
        return tuple(finding for finding in self.findings if finding.verdict == "defect")

    def count(self, verdict: Verdict) -> int:
        """Return the number of prompts with a verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the audit as data for JSON."""
        return asdict(self)
