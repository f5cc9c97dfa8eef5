"""Requests with extreme options beside ordinary streams: what they cost others in time, and the server in memory.

    python -m benchmarks extremes [--num 200] [--clients 2] [--streams 8] [--seed 0]

A server of the built-in model gets ordinary streams alone, then beside plain requests, then twice beside as many
requests with random strategies, options, constraints and samplers, up to extreme ones. The command prints how these
ended, how long the streams took in each part, and the server's memory before each part and in the minute after them;
every stream's text is compared with the library's for the request alone. It fails for another text, a status of 500 or
above, and a median time above twice that of the streams alone.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import facts
from benchmarks.serving.soak import ConnectionMiddleware, alone

_PROMPTS = ["# heapq\ndef merge(", "# shutil", "import os\n\n", "# gzip\ndef open(", "class Parser:", "# zlib\ndef "]
_OPTIONS = {  # of strategies that need neither a file nor a model
    "lookahead": ("N", "W", "G"),
    "jacobi": ("n",),
    "prompt_lookup": ("max_ngram", "num_tokens", "num_matches"),
    "suffix": ("num_nodes", "depth"),
    "token_recycling": ("num_nodes", "k", "num_pairs"),
    "grammar": ("num_nodes",),
    "auto": (),
}
_UNLIMITED = {"suffix": "min_probability=0.0", "token_recycling": "min_probability=0.0", "auto": "loss=0.99"}
_SIZES = (2, 3, 5, 8, 13, 20, 32, 48, 64, 80, 100, 120, 1024)  # of an option: the largest that is allowed, and beyond
_CONSTRAINTS: list[dict[str, Any]] = [
    {"guided_regex": "(a|b){500}c{1000}"},
    {"guided_regex": "(x+x+)+y"},
    {"guided_choice": [f"choice {number}" for number in range(1000)]},
    {"guided_json": {"type": "array", "items": {"type": "integer", "multipleOf": 7}, "maxItems": 500}},
    {"guided_json": {"anyOf": [{"type": "object", "properties": {f"p{n}": {"type": "string"}}} for n in range(100)]}},
    {"guided_grammar": 'start: expr\nexpr: term ("+" term)*\nterm: /[0-9]+/ | "(" expr ")"'},
    {"response_format": {"type": "json_object"}},
]
_SAMPLERS: list[dict[str, Any]] = [
    {"stop": ["x" * 500, *(f"{number}" * 12 for number in range(4, 9))]},
    {"logit_bias": {str(token): -1.0 for token in range(2000)}},
    {"n": 4},
    {"logprobs": 20},
    {"stop_token_ids": [*range(1000, 1256)]},
    {"repetition_penalty": 1.5, "frequency_penalty": 2.0, "presence_penalty": -2.0, "top_k": 2000, "min_p": 0.001},
    {"echo": True, "logprobs": 20},
    {"verifier": "rejection"},
    {"verifier": "typical:epsilon=0.9,delta=100"},
]


def proposer(rng: random.Random) -> str:
    """Return a strategy with extreme options, or a merge of several."""
    parts = []
    for _ in range(rng.choice([1, 1, 1, 2, 4, 20])):
        name = rng.choice([*_OPTIONS])
        chosen = [f"{option}={rng.choice(_SIZES)}" for option in _OPTIONS[name] if rng.random() < 0.4]
        if name in _UNLIMITED and rng.random() < 0.6:
            chosen.append(_UNLIMITED[name])
        parts.append(f"{name}:{','.join(chosen)}" if chosen else name)
    return "+".join(parts)


def extreme(rng: random.Random) -> dict[str, Any]:
    """Return a body with an extreme strategy, and perhaps an extreme constraint and sampler."""
    made = ordinary(rng) | {"proposer": proposer(rng), "max_tokens": rng.choice([16, 64, 128])}
    if rng.random() < 0.3:
        made["prompt"] = " ".join(rng.choice(["zlib", "def", "import", "x"]) for _ in range(500)) + " " + made["prompt"]
    if rng.random() < 0.3:
        made |= rng.choice(_CONSTRAINTS)
    if rng.random() < 0.5:
        made |= rng.choice(_SAMPLERS)
    return made


def ordinary(rng: random.Random) -> dict[str, Any]:
    """Return the body of an ordinary request."""
    return {
        "model": "demo", "prompt": rng.choice(_PROMPTS), "max_tokens": 64, "temperature": rng.choice([0, 0.8]),
        "seed": rng.randrange(1000), "frequency_penalty": 0,
    }  # fmt: skip


@dataclass
class Streams:
    """Clients that send ordinary requests without a pause; each text is compared.

    Attributes:
        seconds: of each finished request.
        wrong: texts that differ.
    """

    url: str
    bodies: list[dict[str, Any]]
    texts: list[str]
    seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    wrong: int = 0

    @asynccontextmanager
    async def running(self, client: httpx.AsyncClient, num: int) -> AsyncIterator[None]:
        """Keep streams open meanwhile."""
        tasks = [asyncio.create_task(self._stream(client, number)) for number in range(num)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, client: httpx.AsyncClient, number: int) -> None:
        while True:
            number = (number + 1) % len(self.bodies)
            began = last = time.perf_counter()
            text = ""
            async with client.stream("POST", self.url, json={**self.bodies[number], "stream": True}) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
                        now = time.perf_counter()
                        self.gaps.append(now - last)
                        last = now
            self.seconds.append(time.perf_counter() - began)
            self.wrong += text != self.texts[number]

    def figures(self) -> dict[str, float]:
        """Return the figures of the requests since the last call, in milliseconds."""
        seconds, gaps = sorted(self.seconds), sorted(self.gaps)
        self.seconds, self.gaps = [], []
        return {
            "requests": len(seconds),
            "median": round(1e3 * statistics.median(seconds), 1),
            "p95": round(1e3 * seconds[int(0.95 * len(seconds))], 1),
            "step p50": round(1e3 * statistics.median(gaps), 2),
            "step p99": round(1e3 * gaps[int(0.99 * len(gaps))], 2),
            "step max": round(1e3 * gaps[-1], 1),
        }


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def send(client: httpx.AsyncClient, url: str, bodies: list[dict[str, Any]], clients: int) -> Counter[str]:
    """Send requests, some at a time; return how many ended in which way."""
    left, ended = iter(bodies), Counter[str]()

    async def one_after_another() -> None:
        for body in left:
            try:
                answer = await client.post(url, json=body)
            except httpx.HTTPError as error:
                ended[type(error).__name__] += 1
                continue
            reason = str(answer.json()["error"]["param"]) if answer.status_code == 400 else ""
            ended[f"{answer.status_code} {reason}".strip()] += 1

    await asyncio.gather(*(one_after_another() for _ in range(clients)))
    return ended


async def measured(streams: Streams, given: argparse.Namespace, watched: ConnectionMiddleware) -> dict[str, Any]:
    """Put the parts of the load on a server; return the figures of each."""
    rng, url = random.Random(given.seed), streams.url
    extremes, others = ([extreme(rng) for _ in range(given.num)] for _ in range(2))
    kept = [{name: body[name] for name in ("prompt", "max_tokens", "n") if name in body} for body in extremes]
    plain = [ordinary(rng) | {"proposer": "off"} | body for body in kept]
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None)) as client:
        async with streams.running(client, given.streams):
            await asyncio.sleep(5)  # the costs of drafts are learnt
        streams.figures()
        parts = {"alone": [], "beside plain": plain, "beside extreme": extremes, "beside others": others}
        for name, bodies in {**parts, "alone again": []}.items():
            watched.look(time.perf_counter())
            before, began = cpu_seconds(watched.pid), time.perf_counter()
            async with streams.running(client, given.streams):
                ended = await send(client, url, bodies, given.clients) if bodies else await asyncio.sleep(10)
                taken, spent = time.perf_counter() - began, cpu_seconds(watched.pid) - before
            found[name] = {"seconds": round(taken, 1), "cpu": round(spent, 1), "ended": dict(ended or {})}
            found[name] |= streams.figures()
        for _ in range(6):
            watched.look(time.perf_counter())
            await asyncio.sleep(10)
    return found | {"wrong": streams.wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=200, help="requests with extreme options")
    parser.add_argument("--clients", type=int, default=2, help="that send them, each one at a time")
    parser.add_argument("--streams", type=int, default=8, help="ordinary ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="of the server")
    given = parser.parse_args()
    command = [sys.executable, "-m", "specdec", "serve", "--port", "0", "--log-level", "error", "--prefix-mb", "0"]
    rng = random.Random(given.seed + 1)
    bodies = [ordinary(rng) for _ in range(16)]
    texts = alone(bodies)
    with subprocess.Popen([*command, "--threads", str(given.threads)], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = iter(server.stderr.readline, "")
        url = next(line for line in lines if "http://" in line)
        watched = ConnectionMiddleware(server.pid)
        streams = Streams(f"{url[url.index('http://') :].strip()}/v1/completions", bodies, texts)
        found = asyncio.run(measured(streams, given, watched))
        watched.look(time.perf_counter())
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    memory = [round(look["rss_mb"]) for look in watched.looks]
    most = 2 * found["alone"]["median"]
    print(json.dumps({"machine": facts(), **found, "rss_mb": memory, "exit_code": code}, indent=1))
    failed = [end for end in found["beside extreme"]["ended"] if not end.startswith(("200", "400", "429"))]
    if found["wrong"] or failed or code or found["beside extreme"]["median"] > most:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
