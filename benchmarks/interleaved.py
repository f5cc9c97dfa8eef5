"""The measurement: every contender on every prompt, one at a time, in random order.

Contenders that don't fit into memory together are measured in groups, one after the other. References stay in memory
and take part in every group, so a contender's ratios to them are those of one interleaved run.
"""

import random
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, cycle, islice

from benchmarks.peers.process import PeerError, Process, Setup


@dataclass(frozen=True)
class Run:
    """One prompt, decoded once by one contender. Repeats are numbered over all groups."""

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


@dataclass(frozen=True)
class Rounds:
    """How contenders are measured.

    Attributes:
        max_new_tokens: longest text.
        repeats: how often each contender decodes all prompts.
        warm_up: seconds that each contender decodes before it is timed, so that all are in their steady state.
        at_once: contenders in memory at a time, references included; None for all.
        seed: of the contenders' order.
        starts: how often all contenders are started, each time in the opposite order: a process that starts later is up
            to 5 % faster, as the memory that it gets is contiguous.
    """

    max_new_tokens: int
    repeats: int
    warm_up: float
    at_once: int | None = None
    seed: int = 0
    starts: int = 1


def measure(
    names: Sequence[str], setup: Setup, prompts: Sequence[list[int]], rounds: Rounds, references: Sequence[str] = ()
) -> Measurement:
    """Start the contenders, warm each up, and run them; a failing one is left out from then on.

    No process is left, however this ends.

    Args:
        names: the contenders.
        setup: what they share.
        prompts: token ids of each prompt.
        rounds: how they are measured.
        references: those of ``names`` that take part in every group.
    """
    found, rng = Measurement(), random.Random(rounds.seed)
    others = [name for name in names if name not in references]
    size = None if rounds.at_once is None else rounds.at_once - len(references)
    parts, num_repeats = groups(others, size), count()
    for start in range(rounds.starts):
        turn = -1 if start % 2 else 1
        with ExitStack() as stack:
            staying = _start(references[::turn], setup, prompts, rounds, found, stack)
            for number, part in enumerate(parts):
                with ExitStack() as of_group:
                    processes = staying | _start(part[::turn], setup, prompts, rounds, found, of_group)
                    _note(f"group {number + 1} of {len(parts)}: {', '.join(processes)}")
                    for repeat in islice(num_repeats, rounds.repeats):
                        _run_all(processes, repeat, prompts, rounds.max_new_tokens, rng, found)
                        _note(f"repeat {repeat + 1} of {rounds.starts * len(parts) * rounds.repeats} done")
                staying = {name: process for name, process in staying.items() if name in processes}
    return found


def groups(names: Sequence[str], size: int | None) -> list[list[str]]:
    """Deal names out to as few groups of at most ``size`` as there can be, in turn; one group if it is None.

    Neighbours are mostly variants of one engine, with about the same memory, so each group gets some of each engine.
    """
    count = 1 if size is None else max(1, -(-len(names) // size))
    return [list(names[first::count]) for first in range(count)]


def _start(
    names: Sequence[str],
    setup: Setup,
    prompts: Sequence[list[int]],
    rounds: Rounds,
    found: Measurement,
    stack: ExitStack,
) -> dict[str, Process]:
    """The processes of the contenders that start, warmed up; they end with ``stack``."""
    processes, seconds = dict[str, Process](), 0.0
    for name in (name for name in names if name not in found.failures):
        _note(f"starting {name}")
        try:
            processes[name] = stack.enter_context(Process(name, setup))
            seconds += _warm_up(processes[name], prompts, rounds)
            found.versions[name] = processes[name].versions
        except PeerError as error:
            _drop(name, error, processes, found)
    _note(f"about {seconds * len(prompts) * rounds.repeats / 60:.0f} minutes for these")
    return processes


def _warm_up(process: Process, prompts: Sequence[list[int]], rounds: Rounds) -> float:
    """Decode the prompts in turn for ``warm_up`` seconds, and return a prompt's median time.

    The first decoding isn't counted: weights are packed and graphs compiled then. One more is made in any case.
    """
    process.decode(prompts[0], rounds.max_new_tokens)
    seconds, per_token = list[float](), list[float]()
    for prompt in cycle(prompts):
        reply = process.decode(prompt, rounds.max_new_tokens)
        seconds.append(reply["seconds"])
        per_token.append(1e3 * reply["seconds"] / max(1, len(reply["tokens"])))
        if sum(seconds) >= rounds.warm_up:
            break
    _note(f"  {sum(seconds):.0f} s of warm-up: {per_token[0]:.1f} ms per token at first, {per_token[-1]:.1f} at last")
    return statistics.median(seconds)


def _run_all(
    processes: dict[str, Process],
    repeat: int,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    rng: random.Random,
    found: Measurement,
) -> None:
    """Let each process decode each prompt; one that fails leaves ``processes``."""
    for index, prompt in enumerate(prompts):
        for name in rng.sample(list(processes), k=len(processes)):
            try:
                found.runs.append(_run(processes[name], index, repeat, prompt, max_new_tokens))
            except PeerError as error:
                _drop(name, error, processes, found)


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
