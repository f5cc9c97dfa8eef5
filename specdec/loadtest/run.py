"""A load: requests at random times, whatever the server does with them, or a fixed number at a time."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from specdec.comparison.prompts import EvaluationPrompt
from specdec.loadtest.client import Address, Answered, send


@dataclass(frozen=True, slots=True)
class Load:
    """A load and its length.

    Attributes:
        rate: requests a second, as a Poisson process (open loop); None where ``streams`` says how many there are.
        streams: requests under way at a time, each followed by the next (closed loop).
        num_requests: all of them.
        seed: of the times and of the order of prompts.
    """

    rate: float | None
    streams: int | None
    num_requests: int
    seed: int = 0

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return "1 stream" if self.streams == 1 else f"{self.streams} streams"

    def order(self, prompts: Sequence[EvaluationPrompt]) -> list[EvaluationPrompt]:
        """The prompts of all requests: shuffled, and again from the start where there are more requests."""
        shuffled = random.Random(self.seed).sample(prompts, len(prompts))
        return [shuffled[number % len(shuffled)] for number in range(self.num_requests)]

    def times(self) -> list[float]:
        """Seconds at which requests are due; only of an open loop."""
        rng, now, times = random.Random(self.seed), 0.0, []
        assert self.rate is not None, "only an open loop has times"
        for _ in range(self.num_requests):
            times.append(now)
            now += rng.expovariate(self.rate)
        return times


@dataclass(frozen=True, slots=True)
class Ran:
    """A load that was run.

    Attributes:
        seconds: from the first request to the last answer's end.
    """

    load: Load
    answers: Sequence[Answered]
    seconds: float


async def run(
    address: Address, load: Load, prompts: Sequence[EvaluationPrompt], timeout: float, on_answer: Callable[[], None]
) -> Ran:
    """Put a load on a server, and wait for all answers."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=timeout, limits=limits) as client:
        began = time.perf_counter()

        async def one(prompt: EvaluationPrompt, due: float) -> Answered:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            answered = await send(client, address, prompt, began, due)
            on_answer()
            return answered

        order = load.order(prompts)
        if load.rate is not None:
            answers = await asyncio.gather(*map(one, order, load.times()))
        else:
            waiting, answers = iter(order), []

            async def stream() -> None:
                for prompt in waiting:  # shared: each prompt goes to whichever stream is free
                    answers.append(await one(prompt, time.perf_counter() - began))

            await asyncio.gather(*(stream() for _ in range(load.streams or 1)))
        return Ran(load, answers, time.perf_counter() - began)
