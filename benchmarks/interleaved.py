"""The measurement: every contender on every prompt, one at a time, in random order."""

import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.peers.process import PeerError, Process, Setup


@dataclass(frozen=True)
class Run:
    """One prompt, decoded once by one contender."""

    contender: str
    prompt: int
    repeat: int
    tokens: tuple[int, ...]
    seconds: float
    steps: int | None
    phases: dict[str, float] | None
    peak_bytes: int | None
    total_bytes: int | None = None


@dataclass
class Measurement:
    """All runs, the versions by contender, and the reason of each contender that failed."""

    versions: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def measure(
    names: Sequence[str],
    setup: Setup,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    repeats: int,
    seed: int = 0,
) -> Measurement:
    """Start the contenders, warm each up with a prompt, twice, and run them; a failing one is left out from then on.

    No process is left, however this ends.
    """
    found = Measurement()
    with ExitStack() as stack:
        processes, warm_ups = dict[str, Process](), dict[str, float]()
        for name in names:
            _note(f"starting {name}")
            try:
                processes[name] = stack.enter_context(Process(name, setup))
                processes[name].decode(prompts[0], max_new_tokens)  # weights are packed, graphs compiled
                warm_ups[name] = processes[name].decode(prompts[0], max_new_tokens)["seconds"]
                found.versions[name] = processes[name].versions
            except PeerError as error:
                _drop(name, error, processes, found)
        seconds = sum(warm_ups[name] for name in processes)
        _note(f"about {seconds * len(prompts) * repeats / 60:.0f} minutes if all prompts take as long as the first")
        rng = random.Random(seed)
        for repeat in range(repeats):
            for index, prompt in enumerate(prompts):
                for name in rng.sample(list(processes), k=len(processes)):
                    try:
                        found.runs.append(_run(processes[name], index, repeat, prompt, max_new_tokens))
                    except PeerError as error:
                        _drop(name, error, processes, found)
            _note(f"repeat {repeat + 1} of {repeats} done")
    return found


def _run(process: Process, index: int, repeat: int, prompt: list[int], max_new_tokens: int) -> Run:
    reply = process.decode(prompt, max_new_tokens)
    tokens = tuple(reply.pop("tokens"))
    return Run(process.name, index, repeat, tokens, **reply)


def _drop(name: str, error: PeerError, processes: dict[str, Process], found: Measurement) -> None:
    found.failures[name] = str(error)
    _note(str(error))
    processes.pop(name, None)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
