"""Servers under load: specdec's, with and without drafts, against vLLM's and transformers', at the same arrival times.

    python -m benchmarks serving --prompts FILE --out benchmarks/results/serving_float32.json
    python -m benchmarks serving --prompts FILE --contender off --contender auto --streams 1 --rounds 5

The model is SmolLM2-135M-Instruct (``make real-model``); prompts are those of a JSON Lines file, sent as chat messages.
Each round gives every contender the same loads in turn, with prompts that no earlier round used. Idle servers are
stopped (SIGSTOP). Peers use the environments of ``python -m benchmarks environments``.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environments import pythons
from benchmarks.machine import facts, recorded
from specdec.apps.comparison.prompts import EvaluationPrompt, load_prompts
from specdec.apps.loadtest.client import Address
from specdec.apps.loadtest.figures import Goal, Summary, summary_of
from specdec.apps.loadtest.run import Load, run
from specdec.demo import smollm2

_GOAL = Goal(first=2.0, per_token=0.2)
_LONGEST = 600  # words of a prompt; the model has 8,192 positions, and peers' defaults less
_START = 300.0  # seconds
Found = dict[str, list[dict[str, Any]]]  # summaries of rounds, by contender and load


@dataclass(frozen=True)
class Contender:
    """A server, by its command, and further fields of its requests."""

    name: str
    server: str
    fields: dict[str, Any] = field(default_factory=dict)


CONTENDERS = {
    each.name: each
    for each in (
        # a server each: on a shared one, the second would find the first's prompts in its prefix cache
        Contender("off", "specdec-off", {"proposer": "off"}),
        Contender("auto", "specdec-auto", {"proposer": "auto"}),
        Contender("off-fast", "specdec-off-fast", {"proposer": "off"}),
        Contender("auto-fast", "specdec-auto-fast", {"proposer": "auto"}),
        Contender("openvino-off", "specdec-openvino-off", {"proposer": "off"}),
        Contender("openvino", "specdec-openvino", {"proposer": "auto"}),
        Contender("openvino-fast", "specdec-openvino-fast", {"proposer": "auto"}),
        Contender("head", "specdec-head", {"proposer": "head"}),
        Contender("openvino-head", "specdec-openvino-head", {"proposer": "head"}),
        Contender("openvino-head-fast", "specdec-openvino-head-fast", {"proposer": "head"}),
        Contender("vllm", "vllm"),
        Contender("vllm-ngram", "vllm-ngram"),
        Contender("vllm-suffix", "vllm-suffix"),
        Contender("vllm-specdec", "vllm-specdec"),
        Contender("transformers", "transformers"),
    )
}


VLLM_DRAFTS: dict[str, dict[str, Any]] = {
    "vllm-ngram": {"method": "ngram", "num_speculative_tokens": 10, "prompt_lookup_max": 3},
    "vllm-suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "vllm-specdec": {"method": "custom_class", "model": "specdec_vllm.Proposer", "num_speculative_tokens": 10},
}


def command_of(
    server: str, dtype: str, threads: int, port: int, head: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command that starts a server, and its environment variables; ``head`` is a trained head's folder."""
    model, own = str(smollm2.checkpoint(dtype)), {"OMP_NUM_THREADS": str(threads)}
    if server.startswith("specdec"):
        options = ["--model", "smollm2", "--dtype", dtype, "--port", str(port), "--threads", str(threads)]
        options += ["--numerics", "fast"] * server.endswith("-fast")
        options += ["--offer", f"head=auto+eagle3:head={head}"] * ("head" in server)
        # `make openvino` installs the plug-in; with it, a server without this option takes OpenVINO by itself
        options += ["--backend", "openvino" if "openvino" in server else "hf"]
        return [sys.executable, "-m", "specdec", "serve", *options, "--log-level", "warning"], own
    if server.startswith("vllm"):
        options = ["--dtype", dtype, "--port", str(port), "--max-num-seqs", "32", "--max-model-len", "4096"]
        if server in VLLM_DRAFTS:
            options += ["--speculative-config", json.dumps(VLLM_DRAFTS[server])]
        python = Path(pythons()["vllm"])
        own |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "KMP_BLOCKTIME": "5"}
        openmp = python.parents[1] / "lib" / "libiomp5.so"  # vLLM recommends Intel's
        if openmp.exists():
            own["LD_PRELOAD"] = str(openmp)
        return [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model, *options], own
    program = str(Path(pythons()["serving"]).with_name("transformers"))
    return [program, "serve", "--port", str(port), "--dtype", dtype, "--device", "cpu", model], own


@contextmanager
def started(server: str, dtype: str, threads: int, log: Path, head: Path | None = None) -> Iterator[tuple[str, int]]:
    """Start a server; return its address and its process group, which is stopped until its first request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, own = command_of(server, dtype, threads, port, head)
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, **own}, start_new_session=True)
    try:
        url, began = f"http://127.0.0.1:{port}", time.monotonic()
        while not is_up(f"{url}/health"):
            if process.poll() is not None or time.monotonic() - began > _START:
                raise SystemExit(f"{server} has not started:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield url, process.pid
    finally:
        with suppress(ProcessLookupError):
            for sent in (signal.SIGCONT, signal.SIGTERM):
                os.killpg(process.pid, sent)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            os.killpg(process.pid, signal.SIGKILL)


def is_up(url: str) -> bool:
    """Return True if a server answers."""
    try:
        return bool(urllib.request.urlopen(url, timeout=2).status == 200)
    except (OSError, urllib.error.URLError):
        return False


def short(prompts: list[EvaluationPrompt]) -> list[EvaluationPrompt]:
    """Return the prompts that every server accepts."""
    return [each for each in prompts if isinstance(each.prompt, str) and len(each.prompt.split()) <= _LONGEST]


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", action="append", choices=[*CONTENDERS], help="all without this")
    parser.add_argument("--head", type=Path, help="folder of a trained head, for the contenders named after it")
    parser.add_argument("--streams", action="append", type=int, help="concurrent requests (default: 1, 4, 16 and 32)")
    parser.add_argument("--rate", action="append", type=float, help="… or requests a second, at random")
    parser.add_argument("--requests", type=int, default=16, help="of each load, or twice the streams if that is more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--logs", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path)
    return parser


def main() -> None:
    parser = options()
    given = parser.parse_args()
    usual = [name for name in CONTENDERS if given.head or "head" not in name]
    contenders = [CONTENDERS[name] for name in given.contender or usual]
    if not given.head and any("head" in contender.server for contender in contenders):
        parser.error("a contender with a head needs --head")
    found: Found = {}
    with ExitStack() as running:
        addresses = {}
        for server in dict.fromkeys(each.server for each in contenders):
            url, group = running.enter_context(
                started(server, given.dtype, given.threads, given.logs / f"serving-{server}.log", given.head)
            )
            os.killpg(group, signal.SIGSTOP)
            addresses[server] = url, group
        for contender, load, chosen in turns(contenders, short(load_prompts(given.prompts)), given):
            address, most = addresses[contender.server], given.max_tokens
            name = "smollm2" if contender.server.startswith("specdec") else str(smollm2.checkpoint(given.dtype))
            summary = asyncio.run(put_load(contender, address, load, chosen, most, name))
            found.setdefault(f"{contender.name} {load}", []).append(summary.as_dict())
            print(load.seed, contender.name, line(summary), flush=True)
            if given.out is not None:
                whole = {"recorded": recorded(), "machine": facts(), "args": vars(given), "runs": found}
                given.out.write_text(json.dumps(whole, default=str))
    print(facts())
    print_medians(found)


def turns(
    contenders: Sequence[Contender], prompts: Sequence[EvaluationPrompt], given: argparse.Namespace
) -> Iterator[tuple[Contender, Load, list[EvaluationPrompt]]]:
    """Yield each round's loads, each for every contender in turn, with prompts that no earlier load used."""
    streams = given.streams or ([] if given.rate else [1, 4, 16, 32])
    loads = [(None, count) for count in streams] + [(rate, None) for rate in given.rate or []]
    used = 0
    for round_number in range(given.rounds):
        first = round_number % len(contenders)
        for rate, count in loads:
            num_requests = max(given.requests, 2 * (count or 0))
            chosen = [prompts[(used + number) % len(prompts)] for number in range(num_requests)]
            used += num_requests
            for contender in (*contenders[first:], *contenders[:first]):
                yield contender, Load(rate, count, num_requests, seed=round_number), chosen


def print_medians(found: Found) -> None:
    """Print each contender's speed and median times to the first token, by load."""
    for name, summaries in found.items():
        rates = [each["tokens_per_second"] for each in summaries]
        firsts = [each["first"]["p50"] for each in summaries if each["first"]]
        print(f"{name:24} {statistics.median(rates):7.1f} tok/s  ({min(rates):.1f} to {max(rates):.1f})  {firsts}")


async def put_load(
    contender: Contender,
    address: tuple[str, int],
    load: Load,
    prompts: list[EvaluationPrompt],
    max_tokens: int,
    name: str,
) -> Summary:
    """Put a load on one contender's server, which runs meanwhile."""
    url, group = address
    os.killpg(group, signal.SIGCONT)
    try:
        fields = {"model": name, "max_tokens": max_tokens, "temperature": 0, **contender.fields}
        ran = await run(Address(url, True, fields), load, prompts, 600.0, lambda: None)
        return summary_of(ran, _GOAL)
    finally:
        os.killpg(group, signal.SIGSTOP)


def line(summary: Summary) -> str:
    """The figures of one load."""
    first, token = (summary.as_dict()[name] or {} for name in ("first", "per_token"))
    speed = f"{summary.load:11} {summary.num_succeeded}/{summary.num_requests} {summary.tokens_per_second:7.1f} tok/s"
    waits = f"first {first.get('p50')} p99 {first.get('p99')}, token {token.get('p50')} p99 {token.get('p99')}"
    return f"{speed}, {waits} {summary.failures or ''}"


if __name__ == "__main__":
    main()
