"""The findings of an audit, prompt by prompt."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["identical", "numeric tie", "defect"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One prompt's text, compared with plain decoding's.

    ``position`` is the first new token that differs, ``token`` the strategy's there and ``expected`` plain decoding's,
    None where a text had ended; ``scores`` are what plain decoding decided by there, token's first, and ``margin`` by
    how much expected's is greater. ``noise``: how far this model's own logits move there between passes of different
    shapes. ``deviation``: the greatest difference of a logit between strategy and plain decoding at any position that
    both committed, None where the rule can't be watched.
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
    """A strategy's audit: what was decoded with, and a finding for each prompt."""

    strategy: str
    verifier: str
    numerics: str
    findings: tuple[Finding, ...]

    @property
    def defects(self) -> tuple[Finding, ...]:
        """The findings that are no rounding."""
        return tuple(finding for finding in self.findings if finding.verdict == "defect")

    def count(self, verdict: Verdict) -> int:
        """Return the number of prompts that came to a verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON knows it."""
        return asdict(self)
