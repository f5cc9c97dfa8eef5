"""The figures of all questions together, and the verdict in one sentence, whatever the result."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.apps.side_by_side.agreement import SAME, Agreement
from specdec.apps.side_by_side.contenders import TimedAnswer

_NO_CHANGE = 0.02  # ratios closer to 1 than this are reported as no change


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of each contender, one for each question, and how specdec's agree with transformers'.

    ``engine`` is the name of the engine that runs specdec's passes, for the sentence; ``numerics`` are those of both
    specdec contenders.
    """

    kinds: tuple[str, ...]
    transformers: tuple[TimedAnswer, ...]
    without_drafts: tuple[TimedAnswer, ...]
    specdec: tuple[TimedAnswer, ...]
    engine: str
    numerics: str
    agreements: tuple[Agreement, ...]
    agreements_without_drafts: tuple[Agreement, ...]

    @property
    def speed_up(self) -> float:
        """specdec's speed over transformers': all tokens over all seconds."""
        return speed(self.specdec) / speed(self.transformers)

    @property
    def by_kind(self) -> dict[str, float]:
        """The speed-up for each kind of question."""
        pairs = zip(self.specdec, self.transformers, strict=True)
        ratios = [ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs]
        return dict(zip(self.kinds, ratios, strict=True))

    @property
    def of_engine(self) -> float:
        """The speed-up without drafts."""
        return speed(self.without_drafts) / speed(self.transformers)

    @property
    def of_drafts(self) -> float:
        """The speed-up by drafts; its product with ``of_engine`` is the whole speed-up."""
        return speed(self.specdec) / speed(self.without_drafts)


def speed(answers: Sequence[TimedAnswer]) -> float:
    """Return tokens per second: all tokens over all seconds."""
    return sum(len(answer.token_ids) for answer in answers) / sum(answer.seconds for answer in answers)


def tokens_per_step(answers: Sequence[TimedAnswer]) -> float:
    """Return new tokens over forward passes."""
    return sum(len(answer.token_ids) for answer in answers) / sum(answer.num_steps for answer in answers)


def times(ratio: float) -> str:
    """Format a ratio with its significant digits."""
    return f"{ratio:.1f}" if ratio >= 1.15 else f"{ratio:.2f}"


def verdict(measured: Measured, is_busy: bool = False) -> str:
    """Return a sentence with specdec's speed-up on this machine, and the parts of the engine and of drafts."""
    where = "On this machine, busy with other programs," if is_busy else "On this machine"
    return f"{where} {_whole(measured)}: {_engine(measured)}, {_drafts(measured)}."


def _whole(measured: Measured) -> str:
    ratio, slower = measured.speed_up, [kind for kind, ratio in measured.by_kind.items() if ratio < 1]
    text, kinds = _texts(measured.agreements), " and ".join(slower)
    if not slower:
        return f"specdec writes {text} {times(ratio)} times as fast as transformers"
    if len(slower) == len(measured.kinds):
        return f"specdec is slower than transformers, {times(ratio)} times as fast, and writes {text}"
    if ratio > 1:
        return f"specdec writes {text} {times(ratio)} times as fast as transformers, but is slower on {kinds}"
    return f"specdec is slower than transformers on {kinds}, {times(ratio)} times as fast in all, and writes {text}"


def _texts(agreements: Sequence[Agreement]) -> str:
    found = [each.verdict for each in agreements]
    if "defect" in found:
        return "ANOTHER TEXT"
    num_ties = found.count("numeric tie")
    if num_ties:
        return f"the same text, but for {num_ties} numeric tie{'s' if num_ties > 1 else ''},"
    assert set(found) <= {SAME}
    return "the same text"


def _engine(measured: Measured) -> str:
    ratio = measured.of_engine
    if abs(ratio - 1) < _NO_CHANGE:
        return f"{measured.engine} changes nothing"
    if ratio < 1:
        return f"{measured.engine} alone is {times(ratio)} times as fast"
    return f"{measured.engine} makes it {times(ratio)} times as fast"


def _drafts(measured: Measured) -> str:
    ratio = measured.of_drafts
    if abs(ratio - 1) < _NO_CHANGE:
        return "and drafts change nothing"
    if ratio < 1:
        return f"and drafts slow that to {times(ratio)} times (proposer='autoregressive' does without them)"
    return f"and drafts make that {times(ratio)} times as fast"
