"""Runs a load: requests at random times (open loop), or a fixed number at a time (closed loop)."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from specdec.apps.comparison.prompts import EvaluationPrompt
from specdec.apps.loadtest.client import Address, Answered, send


@dataclass(frozen=True, slots=True)
class Load:
    """A load and its length.

    Attributes:
        rate: requests per second, as a Poisson process (open loop); None if ``streams`` is given.
        streams: concurrent requests, each followed by the next (closed loop).
        num_requests: the total number of requests.
        seed: for the times and the order of prompts.
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
        """Return the prompts of all requests: shuffled, and repeated if there are more requests than prompts."""
        shuffled = random.Random(self.seed).sample(prompts, len(prompts))
        return [shuffled[number % len(shuffled)] for number in range(self.num_requests)]

    def times(self) -> list[float]:
        """Return the seconds at which requests are due; for open loops only."""
        rng, now, times = random.Random(self.seed), 0.0, []
        assert self.rate is not None, "only an open loop has times"
        for _ in range(self.num_requests):
            times.append(now)
            now += rng.expovariate(self.rate)
        return times


@dataclass(frozen=True, slots=True)
class FinishedLoad:
    """The answers to a load.

    Attributes:
        seconds: from the first request to the end of the last answer.
    """

    load: Load
    answers: Sequence[Answered]
    seconds: float


async def run(
    address: Address, load: Load, prompts: Sequence[EvaluationPrompt], timeout: float, on_answer: Callable[[], None]
) -> FinishedLoad:
    """Run a load on a server, and wait for all answers."""
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
                for prompt in waiting:  # shared: each prompt goes to the next free stream
                    answers.append(await one(prompt, time.perf_counter() - began))

            await asyncio.gather(*(stream() for _ in range(load.streams or 1)))
        return FinishedLoad(load, answers, time.perf_counter() - began)
