"""A server under moderate load for an hour: every answer is compared; memory, files and threads are watched.

    python -m benchmarks soak --minutes 60 --out benchmarks/results/soak.json
    python -m benchmarks soak --minutes 1 --streams 32

Requests of mixed lengths, strategies and temperatures arrive at random times, streamed and not. One in five disconnects
during its answer, and one in ten is invalid. With ``--streams`` that many clients send requests without a pause, and a
signal ends the server meanwhile; accepted requests must still be answered correctly. Each answer is compared with the
library's answer to the request alone.
"""

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import facts, recorded
from specdec import Generator, demo

_STRATEGIES = ["off", "auto", "prompt_lookup", "lookahead:N=4,W=4,G=4", "suffix+token_recycling", "jacobi:n=4"]
_PROMPTS = [
    "# heapq\ndef merge(",
    "# shutil",
    "import os\n\n",
    "# gzip\ndef open(",
    "# " + "zlib " * 80,
    "class Parser:",
]
_WRONG: list[dict[str, Any]] = [
    {"temperature": 9},
    {"model": "x"},
    {"prompt": []},
    {"proposer": "x"},
    {"max_tokens": 9**9},
]
_EVERY = 10.0  # seconds between looks at the process


def kinds(seed: int, count: int) -> list[dict[str, Any]]:
    """Requests, each with its own seed."""
    rng = random.Random(seed)
    return [
        {
            "model": "demo", "prompt": rng.choice(_PROMPTS), "max_tokens": rng.choice([1, 8, 24, 64, 160]),
            "temperature": rng.choice([0, 0.7, 1.0]), "seed": rng.randrange(1000),
            "frequency_penalty": rng.choice([0, 0, 0.4]), "proposer": rng.choice(_STRATEGIES),
        }
        for _ in range(count)
    ]  # fmt: skip


def alone(bodies: list[dict[str, Any]]) -> list[str]:
    """The texts of requests by plain decoding, one at a time."""
    texts = []
    with Generator(*demo.load(), proposer="autoregressive") as generator:
        for body in bodies:
            names = {"temperature": "temperature", "seed": "seed", "frequency_penalty": "frequency_penalty"}
            settings = {own: body[name] for name, own in names.items()}
            texts.append(generator.generate(body["prompt"], max_new_tokens=body["max_tokens"], **settings).text or "")
    return texts


class ConnectionMiddleware:
    """A process's memory, open files and threads over time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.looks: list[dict[str, float]] = []

    def look(self, seconds: float) -> None:
        """Record memory, files and threads."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        self.looks.append(
            {
                "seconds": round(seconds),
                "rss_mb": int(lines["VmRSS"].split()[0]) / 1024,
                "files": len(list(Path(f"/proc/{self.pid}/fd").iterdir())),
                "threads": int(lines["Threads"]),
            }
        )

    def between(self, begin: float, end: float, name: str) -> float:
        """The median of a figure over a part of the run."""
        last = self.looks[-1]["seconds"]
        part = [look[name] for look in self.looks if begin * last <= look["seconds"] <= end * last]
        return statistics.median(part or [self.looks[-1][name]])


class Requests:
    """Requests to a server, and how each ended."""

    def __init__(self, address: str, bodies: list[dict[str, Any]], texts: list[str], client: httpx.AsyncClient) -> None:
        self._url, self._bodies, self._texts, self._client = f"{address}/v1/completions", bodies, texts, client
        self._rng = random.Random(1)
        self.ended = Counter[str]()
        self.is_stopping = False  # the server has received the signal to end

    async def one(self) -> None:
        """Send a request of any kind."""
        kind = self._rng.choices(["wrong", "whole", "streamed", "leaves"], [1, 3, 4, 2])[0]
        number = self._rng.randrange(len(self._bodies))
        try:
            end = await self._end(self._bodies[number], self._texts[number], kind, number)
        except httpx.ConnectError:
            end = "turned away" if self.is_stopping else "failed: no connection"
        except Exception as error:
            end = f"failed: {type(error).__name__}"
        self.ended[end] += 1

    async def _end(self, body: dict[str, Any], text: str, kind: str, number: int) -> str:
        if kind == "wrong":
            answer = await self._client.post(self._url, json={**body, **_WRONG[number % len(_WRONG)]})
            return "refused" if answer.status_code in (400, 404) else self._failed(answer.status_code)
        if kind != "whole":
            return await streamed(self._client, self._url, body, text, kind == "leaves", self._failed)
        answer = await self._client.post(self._url, json=body)
        if answer.status_code != 200:
            return self._failed(answer.status_code)
        return judged(answer.json()["choices"][0]["text"], text)

    def _failed(self, status: int) -> str:
        return "turned away" if status == 503 and self.is_stopping else f"failed: status {status}"

    async def at_random(self, minutes: float, rate: float, watched: ConnectionMiddleware) -> None:
        """Send requests at random times."""
        async with asyncio.TaskGroup() as tasks:
            async for _ in looking(minutes, watched, lambda: self._rng.expovariate(rate)):
                tasks.create_task(self.one())

    async def without_pause(
        self, minutes: float, streams: int, watched: ConnectionMiddleware, stop: Callable[[], None]
    ) -> None:
        """Send requests without a pause from all clients, and end the server halfway."""

        async def stream() -> None:
            while not self.is_stopping:
                await self.one()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(streams):
                tasks.create_task(stream())
            async for _ in looking(minutes, watched, lambda: 1.0):
                pass
            self.is_stopping = True
            stop()
            for _ in range(streams):
                tasks.create_task(self.one())


async def looking(minutes: float, watched: ConnectionMiddleware, pause: Callable[[], float]) -> AsyncIterator[None]:
    """Sample the process from time to time until the load is over."""
    began, looked = time.monotonic(), -_EVERY
    while (now := time.monotonic() - began) < 60 * minutes:
        if now - looked >= _EVERY:
            looked = now
            watched.look(now)
        yield
        await asyncio.sleep(pause())
    watched.look(time.monotonic() - began)


async def streamed(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], expected: str, leaves: bool, failed: Callable[[int], str]
) -> str:
    """Request a stream; disconnect after a part of it, or compare all of it."""
    text = ""
    async with client.stream("POST", url, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            return failed(response.status_code)
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                part = json.loads(line[6:])
                if "error" in part:
                    return "failed: error in a stream"
                text += part["choices"][0]["text"]
                if leaves:
                    return "left"
    return judged(text, expected)


def judged(text: str, expected: str) -> str:
    """Describe how an answer ended."""
    return "the same" if text == expected else "another text"


async def put(
    address: str,
    bodies: list[dict[str, Any]],
    texts: list[str],
    given: argparse.Namespace,
    server: Any,
    watched: ConnectionMiddleware,
) -> Counter[str]:
    """Put the load on a server; return how requests ended."""
    async with httpx.AsyncClient(timeout=120.0, limits=httpx.Limits(max_connections=None)) as client:
        load = Requests(address, bodies, texts, client)
        if given.streams:
            await load.without_pause(given.minutes, given.streams, watched, lambda: server.send_signal(signal.SIGTERM))
        else:
            await load.at_random(given.minutes, given.rate, watched)
        return load.ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--streams", type=int, help="clients without a pause, instead")
    parser.add_argument("--kinds", type=int, default=200, help="different requests")
    parser.add_argument("--threads", type=int, default=2, help="of the server")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    bodies = kinds(0, given.kinds)
    texts = alone(bodies)
    command = [sys.executable, "-m", "specdec", "serve", "--port", "0", "--log-level", "error"]
    command += ["--prefix-mb", "64", "--threads", str(given.threads)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = next(line for line in server.stderr if "http://" in line)
        watched = ConnectionMiddleware(server.pid)
        address = url[url.index("http://") :].strip()
        ended = asyncio.run(put(address, bodies, texts, given, server, watched))
        if not given.streams:
            server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    figures = {
        "recorded": recorded(),
        "machine": facts(),
        "minutes": given.minutes,
        "rate": given.rate,
        "ended": dict(ended),
        "exit_code": code,
        "rss_mb": {
            f"{begin:.0%} to {end:.0%}": round(watched.between(begin, end, "rss_mb"), 1) for begin, end in _PARTS
        },
        "files": {f"{begin:.0%} to {end:.0%}": watched.between(begin, end, "files") for begin, end in _PARTS},
        "threads": {f"{begin:.0%} to {end:.0%}": watched.between(begin, end, "threads") for begin, end in _PARTS},
        "looks": watched.looks,
    }
    print(json.dumps({name: value for name, value in figures.items() if name != "looks"}, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(figures))
    if any(name.startswith(("failed", "wrong", "another")) for name in ended) or code:
        raise SystemExit(1)


_PARTS = (0.05, 0.15), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)

if __name__ == "__main__":
    main()
