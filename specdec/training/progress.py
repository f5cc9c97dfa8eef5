"""The plan and the progress of a training run."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


def rounded(value: float, digits: int) -> str:
    """Return a number above 0 rounded to its first ``digits`` digits.

    >>> rounded(1_170_947, 3), rounded(541_318, 2), rounded(35.94, 2)
    ('1.17 million', '540,000', '36')
    """
    if value <= 0:
        return "0"
    value = round(value, digits - 1 - math.floor(math.log10(value)))
    return f"{value / 1e6:,g} million" if value >= 1e6 else f"{value:,g}"


class TrainingPlan(ABC):
    """The training on the text of a run."""

    __slots__ = ()

    @abstractmethod
    def lines(self, plan: "Plan") -> list[str]:
        """Return the training in words, within the whole plan of its run."""


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
        training: what is trained on the text; None if nothing is.
    """

    num_answer_tokens: int
    num_written: int
    tokens_per_second: float
    text_minutes: float
    training_minutes: float
    source: str
    training: TrainingPlan | None

    def lines(self) -> list[str]:
        """Return the plan in words."""
        return [self._text(), *(self.training.lines(self) if self.training else ())]

    def _text(self) -> str:
        if not self.tokens_per_second:
            return f"text: {rounded(self.num_answer_tokens, 3)} answer tokens, all of them written before"
        before = f" ({rounded(self.num_written, 3)} of them written before)" if self.num_written else ""
        return (
            f"text: the model writes {self.source}: about {rounded(self.num_answer_tokens, 2)} answer tokens{before} "
            f"in {rounded(self.text_minutes, 3)} minutes, at {rounded(self.tokens_per_second, 2)} tokens/s, fewer if "
            "answers end early"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run.

    Attributes:
        stage: "text" or "training".
        num_answer_tokens: written or trained on so far, repetitions included; 0 before the first one.
        tokens_per_second: answer tokens.
        seconds_left: until the whole run ends.
        tokens_per_step: accepted length of the best head so far, by a chain of five on held-out text; 0 without one.
        last: the last evaluation in words, where the best so far doesn't show how the training goes.
    """

    stage: str
    num_answer_tokens: int
    tokens_per_second: float
    seconds_left: float
    tokens_per_step: float = 0.0
    last: str = ""

    def line(self) -> str:
        """Return the state in a line."""
        minutes, seconds = divmod(int(max(0.0, self.seconds_left)), 60)
        best = (
            f", best so far {self.tokens_per_step:.2f} tokens per step on held-out text" if self.tokens_per_step else ""
        )
        rate = f", {self.tokens_per_second:,.0f}/s" if self.tokens_per_second >= 1 else ""
        done = f"{self.num_answer_tokens:,} answer tokens{rate}" if self.num_answer_tokens else "starting"
        last = f", last evaluation {self.last}" if self.last else ""
        return f"{self.stage}: {done}, {minutes}:{seconds:02} left{best}{last}"


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
