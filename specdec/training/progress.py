"""The plan and the progress of a training run."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


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
        tokens_per_second: measured while the first ones were written; 0 if none have to be written.
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
            return f"text: {self.num_answer_tokens:,} answer tokens, all of them written before"
        before = f", {self.num_written:,} of them written before" if self.num_written else ""
        return (
            f"text: the model writes {self.source}: about {self.num_answer_tokens:,} answer tokens in "
            f"{self.text_minutes:.3g} minutes, at {self.tokens_per_second:,.0f} tokens/s{before}"
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run.

    Attributes:
        stage: "text" or "training".
        num_answer_tokens: written or trained on so far, repetitions included.
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
        best = f", best so far {self.tokens_per_step:.2f} tokens per step" if self.tokens_per_step else ""
        done = f"{self.num_answer_tokens:,} answer tokens, {self.tokens_per_second:,.0f}/s"
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
