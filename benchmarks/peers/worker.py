"""The contender's side of the protocol: one line of JSON on standard input, one line on standard output, in turn.

    first, once all is loaded   -> {"versions": "torch 2.13.0, …"}
    {"prompt": [5, 9], "max_new_tokens": 3} -> {"tokens": [7, 7, 2], "seconds": 0.1, "steps": 3, "phases": null,
                                                "peak_bytes": 1048576, "total_bytes": 9437184}

``seconds`` covers decoding alone; ``steps`` are forward passes, the prompt's included, or null; ``phases`` are seconds
by phase, or null; ``peak_bytes`` is memory over the loaded model so far, or null, and ``total_bytes`` all of the
process's. Decoding is greedy. Without ``--eos`` nothing ends a text, so that all contenders write the same number of
tokens; but with a method's option ``schema``, the file of a JSON schema, a text ends where it is complete. A worker
that fails ends, with the reason on standard error. It needs only torch and its own library, in that library's
environment.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.peers.memory import Memory


@dataclass
class Arguments:
    """The arguments of a worker; ``method`` follows the peer's name in a contender's name.

    ``eos`` are the tokens that end a text, none by default.
    """

    model: Path
    dtype: str
    threads: int
    method: str
    eos: list[int] = field(default_factory=list)

    @property
    def options(self) -> dict[str, Any]:
        """``method`` as names and values."""
        return options(self.method)


@dataclass
class Decoded:
    """New tokens of a prompt, with seconds, steps and phases."""

    tokens: list[int]
    steps: int | None = None
    phases: dict[str, float] | None = None


Decode = Callable[[list[int], int], Decoded]  # (prompt, max_new_tokens)


def schema_of(chosen: dict[str, Any]) -> Any:
    """Remove the option ``schema`` from a method's, and return the JSON schema of its file; None without it."""
    path = chosen.pop("schema", None)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def options(text: str) -> dict[str, Any]:
    """``"a=1,b=x"`` as names and values: numbers, true, false and null as in JSON, otherwise text."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    for name, equals, _ in pairs:
        if not equals:
            raise SystemExit(f"option {name!r} has no value: write {name}=VALUE")
    return {name: value_of(value) for name, _, value in pairs}


def value_of(text: str) -> Any:
    """An option's text as a number, true, false or null as in JSON, otherwise as it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def serve(
    load: Callable[[Arguments], Any], prepare: Callable[[Any, Arguments], Decode], packages: Sequence[str]
) -> None:
    """Answer requests until the input ends.

    Args:
        load: returns the model; memory is counted from then on.
        prepare: returns the function that is timed.
        packages: packages whose versions are reported, if installed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", default="", help="what to decode with, by the worker's own rules")
    parser.add_argument("--eos", type=int, nargs="*", default=[], help="tokens that end a text")
    arguments = Arguments(**vars(parser.parse_args()))
    end_with_parent()
    replies = _take_output()
    torch.set_num_threads(arguments.threads)
    model = load(arguments)
    memory = Memory(model)
    decode = prepare(model, arguments)
    _send(replies, {"versions": _versions(packages)})
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        decoded = decode(request["prompt"], request["max_new_tokens"])
        seconds = time.perf_counter() - began
        peaks = {"peak_bytes": memory.peak_bytes(), "total_bytes": memory.total_bytes()}
        _send(replies, {**vars(decoded), "seconds": seconds, **peaks})


def end_with_parent() -> None:
    """End with the parent on Linux; on other systems the end of the input ends the worker."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _take_output() -> TextIO:
    """Return standard output for replies alone, and redirect all printing to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return replies


def _send(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _versions(packages: Sequence[str]) -> str:
    found = [f"Python {sys.version.split()[0]}", f"torch {torch.__version__}"]
    for name in packages:
        try:
            found.insert(0, f"{name} {version(name)}")
        except PackageNotFoundError:  # a build under another name
            continue
    return ", ".join(found)
