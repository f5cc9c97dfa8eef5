"""The plan and the progress of a training run."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

# Tokens per step of SmolLM2's head, by answer tokens of its text: three runs on two cores, which repeat the text, then
# three on a GPU (benchmarks/notebook/2026-11-29-published-heads.md, 2026-11-26-heads.md).
MEASURED = (
    (35_000, 1.52),
    (275_000, 1.89),
    (1_170_000, 2.61),
    (2_500_000, 2.71),
    (5_000_000, 2.99),
    (10_000_000, 3.16),
)
_MOST_MINUTES = 2 * 24 * 60  # that are worth naming


def rounded(value: float, digits: int) -> str:
    """Return a number above 0 rounded to its first ``digits`` digits.

    >>> rounded(1_170_947, 3), rounded(541_318, 2), rounded(35.94, 2)
    ('1.17 million', '540,000', '36')
    """
    if value <= 0:
        return "0"
    value = round(value, digits - 1 - math.floor(math.log10(value)))
    return f"{value / 1e6:,g} million" if value >= 1e6 else f"{value:,g}"


def next_measured(num_answer_tokens: int) -> tuple[int, float] | None:
    """Return the next larger text that SmolLM2's head was trained on, in answer tokens, and its tokens per step."""
    return next((point for point in MEASURED if point[0] > num_answer_tokens), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The work planned for the given time.

    Attributes:
        num_answer_tokens: of the text, including what was written before.
        num_written: answer tokens that were written before.
        tokens_per_second: measured in the first seconds of writing, after prefill of the template's shared prefix. It
            assumes answers of full length; the actual rate is lower if answers end early. 0 if none have to be written.
        text_minutes: time for the text.
        training_minutes: time for the training that follows.
        source: what the model writes, in words.
        has_training: False if no head is trained on the text.
    """

    num_answer_tokens: int
    num_written: int
    tokens_per_second: float
    text_minutes: float
    training_minutes: float
    source: str
    has_training: bool

    def lines(self) -> list[str]:
        """Return the plan in words."""
        if not self.has_training:
            return [self._text()]
        training = (
            f"training: an EAGLE-3 head for {rounded(self.training_minutes, 3)} minutes; the head with the most "
            "tokens per step on held-out text is kept"
        )
        return [self._text(), training, f"to expect: {self._expectation()}"]

    def _text(self) -> str:
        if not self.tokens_per_second:
            return f"text: {rounded(self.num_answer_tokens, 3)} answer tokens, all of them written before"
        before = f" ({rounded(self.num_written, 3)} of them written before)" if self.num_written else ""
        return (
            f"text: the model writes {self.source}: about {rounded(self.num_answer_tokens, 2)} answer tokens{before} "
            f"in {rounded(self.text_minutes, 3)} minutes, at {rounded(self.tokens_per_second, 2)} tokens/s, fewer if "
            "answers end early"
        )

    def _expectation(self) -> str:
        """Return the tokens per step that a head of SmolLM2 reached with this much text, in words."""
        measure, plain = "tokens per step (chain of 5 draft tokens, held-out text)", "plain decoding has 1"
        reached = [point for point in MEASURED if point[0] <= self.num_answer_tokens]
        num_tokens, tokens_per_step = reached[-1] if reached else MEASURED[0]
        head = f"SmolLM2's head reached after {rounded(num_tokens, 3)} answer tokens"
        if reached:
            return f"about {tokens_per_step:.1f} {measure}, as {head}; {plain}, and larger models may gain more"
        minutes = self._minutes_for(num_tokens)
        remedy = f" (give about --minutes {math.ceil(minutes)})" if minutes <= _MOST_MINUTES else ""
        return f"fewer than {tokens_per_step:.1f} {measure}, which {head}{remedy}; {plain}"

    def _minutes_for(self, num_answer_tokens: int) -> float:
        """Return the time for a run with this much text, with the same shares; infinite if unknown."""
        if not (self.tokens_per_second and self.text_minutes):
            return math.inf
        minutes = num_answer_tokens / self.tokens_per_second / 60
        return minutes * (self.text_minutes + self.training_minutes) / self.text_minutes


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run.

    Attributes:
        stage: "text", "least-squares start" or "training".
        num_answer_tokens: written or trained on so far, repetitions included; 0 before the first one.
        tokens_per_second: answer tokens.
        seconds_left: until the whole run ends.
        tokens_per_step: accepted length of the best head so far, by a chain of five on held-out text; 0 without one.
    """

    stage: str
    num_answer_tokens: int
    tokens_per_second: float
    seconds_left: float
    tokens_per_step: float = 0.0

    def line(self) -> str:
        """Return the state in a line."""
        minutes, seconds = divmod(int(max(0.0, self.seconds_left)), 60)
        best = (
            f", best so far {self.tokens_per_step:.2f} tokens per step on held-out text" if self.tokens_per_step else ""
        )
        rate = f", {self.tokens_per_second:,.0f}/s" if self.tokens_per_second >= 1 else ""
        done = f"{self.num_answer_tokens:,} answer tokens{rate}" if self.num_answer_tokens else "starting"
        return f"{self.stage}: {done}, {minutes}:{seconds:02} left{best}"


@dataclass(frozen=True, slots=True)
class Watch:
    """Callbacks of a run while it works.

    Attributes:
        on_plan: called after the first seconds, and again if memory runs out and fewer texts are written at once.
        on_progress: called several times a second at most models' speeds.
        clock: returns seconds.
    """

    on_plan: Callable[[Plan], object] = lambda _: None
    on_progress: Callable[[Progress], object] = lambda _: None
    clock: Callable[[], float] = time.monotonic
