"""A server under moderate load for an hour: every answer compared, memory, files and threads watched.

    python -m benchmarks soak --minutes 60 --out benchmarks/results/soak.json

Requests of mixed lengths, strategies and temperatures come at random times, streamed and not; one in five leaves in the
middle of its answer, one in ten is wrong. Each answer that ends is compared with the same request's alone, by the
library, before the server starts.
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
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import facts
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
    """Requests, each with a seed of its own."""
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
    """The texts of requests, by plain decoding and one at a time."""
    texts = []
    with Generator(*demo.load(), proposer="autoregressive") as generator:
        for body in bodies:
            names = {"temperature": "temperature", "seed": "seed", "frequency_penalty": "frequency_penalty"}
            settings = {own: body[name] for name, own in names.items()}
            texts.append(generator.generate(body["prompt"], max_new_tokens=body["max_tokens"], **settings).text or "")
    return texts


class Watched:
    """A process's memory, open files and threads over time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.looks: list[dict[str, float]] = []

    def look(self, seconds: float) -> None:
        """Note how it stands."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        self.looks.append(
            {
                "seconds": round(seconds),
                "rss_mb": int(lines["VmRSS"].split()[0]) / 1024,
                "files": len(list(Path(f"/proc/{self._pid}/fd").iterdir())),
                "threads": int(lines["Threads"]),
            }
        )

    def between(self, begin: float, end: float, name: str) -> float:
        """The median of a figure over a part of the time."""
        last = self.looks[-1]["seconds"]
        return statistics.median(look[name] for look in self.looks if begin * last <= look["seconds"] <= end * last)


async def soak(
    url: str, minutes: float, rate: float, bodies: list[dict[str, Any]], texts: list[str], watched: Watched
) -> Counter[str]:
    """Put the load on a server; how requests ended."""
    ended, rng, began = Counter[str](), random.Random(1), time.monotonic()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120.0, limits=limits) as client, asyncio.TaskGroup() as tasks:

        async def one(number: int, kind: str) -> None:
            body = bodies[number]
            try:
                if kind == "wrong":
                    answer = await client.post(url, json={**body, **_WRONG[number % len(_WRONG)]})
                    ended["refused" if answer.status_code in (400, 404) else f"wrong: {answer.status_code}"] += 1
                elif kind == "whole":
                    answer = await client.post(url, json=body)
                    text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else None
                    ended[judged(text, texts[number], answer.status_code)] += 1
                else:
                    ended[await streamed(client, url, body, texts[number], leaves=kind == "leaves")] += 1
            except Exception as error:
                ended[f"failed: {type(error).__name__}"] += 1

        looked = -_EVERY
        while (now := time.monotonic() - began) < 60 * minutes:
            if now - looked >= _EVERY:
                looked = now
                watched.look(now)
            kind = rng.choices(["wrong", "whole", "streamed", "leaves"], [1, 3, 4, 2])[0]
            tasks.create_task(one(rng.randrange(len(bodies)), kind))
            await asyncio.sleep(rng.expovariate(rate))
    watched.look(time.monotonic() - began)
    return ended


async def streamed(client: httpx.AsyncClient, url: str, body: dict[str, Any], expected: str, leaves: bool) -> str:
    """Ask for a stream, and leave after a part of it, or compare the whole."""
    text = ""
    async with client.stream("POST", url, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            return judged(None, expected, response.status_code)
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                part = json.loads(line[6:])
                if "error" in part:
                    return "failed: error in a stream"
                text += part["choices"][0]["text"]
                if leaves:
                    return "left"
    return judged(text, expected, 200)


def judged(text: str | None, expected: str, status: int) -> str:
    """How an answer ended."""
    if text is None:
        return f"failed: status {status}"
    return "the same" if text == expected else "another text"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--kinds", type=int, default=200, help="different requests")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    bodies = kinds(0, given.kinds)
    texts = alone(bodies)
    command = [sys.executable, "-m", "specdec", "serve", "--port", "0", "--log-level", "error", "--prefix-mb", "64"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = next(line for line in server.stderr if "http://" in line)
        watched = Watched(server.pid)
        address = url[url.index("http://") :].strip()
        ended = asyncio.run(soak(f"{address}/v1/completions", given.minutes, given.rate, bodies, texts, watched))
        metrics = httpx.get(f"{address}/metrics").text
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    figures = {
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
        "left_behind": [
            line for line in metrics.splitlines() if line.startswith(("specdec_batch_texts", "specdec_queue_texts"))
        ],
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
