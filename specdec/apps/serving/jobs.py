"""Jobs: requests in the engine, and the events by which they report their progress."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from specdec.apps.serving.logprobs import TokenLogprob
from specdec.apps.serving.requests import Call
from specdec.apps.serving.step_events import StepReport
from specdec.apps.serving.usage import Figures
from specdec.decoding.result import Result
from specdec.record import PromptLogprobs


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A step's new tokens and text of one text.

    Attributes:
        index: the text's index in the call.
        logprobs: of the tokens, if requested.
        step: the draft and its outcome, if requested.
        result, figures: set in the last one.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    step: StepReport | None = None
    result: Result | None = None
    figures: Figures | None = None


class Job:
    """A request in the engine, and its events, which are delivered on the sender's event loop.

    Args:
        on_over: called once when no further events follow, with True if all texts have ended.

    Attributes:
        is_over: True if no further events follow.
    """

    def __init__(self, call: Call, on_over: Callable[[bool], object]) -> None:
        self.call = call
        self.is_over = False
        self._on_over = on_over
        self._events = deque[JobProgress | Exception]()
        self._has_news = asyncio.Event()
        self._num_open = len(call.prompts)

    @property
    def has_ended(self) -> bool:
        """True once all texts have ended."""
        return self._num_open == 0

    def give_up(self) -> None:
        """Stop receiving events."""
        if not self.is_over:
            self.is_over = True
            self._on_over(self.has_ended)

    def receive(self, event: JobProgress | Exception) -> None:
        """Add an event; an error ends the job."""
        if self.is_over:
            return
        self._events.append(event)
        self._has_news.set()
        if isinstance(event, JobProgress) and event.result is not None:
            self._num_open -= 1
        if isinstance(event, Exception) or self.has_ended:
            self.give_up()

    async def updates(self) -> AsyncIterator[list[JobProgress]]:
        """Yield lists of the events since the previous one until all texts have ended; raise the error that ends it."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            events, is_over = [*self._events], self.is_over
            self._events.clear()
            if progress := [event for event in events if isinstance(event, JobProgress)]:
                yield progress
            for event in events:
                if isinstance(event, Exception):
                    raise event
            if is_over:
                return


@dataclass(slots=True)
class JobText:
    """One text of a job while it is decoded.

    Attributes:
        prompt: the log-probabilities of its prompt so far.
        is_echoed: True once the prompt was reported, or if it isn't to be.
    """

    job: Job
    index: int
    figures: Figures
    is_echoed: bool
    prompt: list[PromptLogprobs] = field(default_factory=list)
