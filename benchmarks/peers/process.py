"""The driver's side of the protocol: start, request, stop and end a contender's process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

PEERS = ("transformers", "specdec", "lade", "vllm", "openvino", "llamacpp")
_ROOT = Path(__file__).parents[2]
_LAST_LINES = 12  # of standard error, in a message
_PATIENCE = 5  # seconds that a process has to end by itself


class PeerError(Exception):
    """A contender failed to start or to continue; has the end of its standard error."""


@dataclass(frozen=True)
class Setup:
    """The setup that all contenders share.

    Attributes:
        pythons: the peers' own Pythons.
        eos: tokens that end a text.
        checkouts: other folders of this repository, whose code contenders run, as in ``specdec@NAME:METHOD``.
    """

    model: Path
    dtype: str
    threads: int
    pythons: Mapping[str, str]
    eos: tuple[int, ...] = ()
    checkouts: Mapping[str, Path] = field(default_factory=dict)


class Process:
    """A contender, ready to decode; ``name`` is ``PEER`` or ``PEER:METHOD``.

    It runs while it loads and decodes. Between requests it and its children are stopped, so that spinning or waking
    threads don't slow the other contenders.

    Raises:
        PeerError: if it doesn't start, and from ``decode`` if it ends.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        peer, _, method = name.partition(":")
        peer, _, checkout = peer.partition("@")
        if peer not in PEERS:
            raise PeerError(f"{name}: {peer!r} is no peer; there are {', '.join(PEERS)}")
        python = setup.pythons.get(peer, sys.executable)
        command = [python, "-m", f"benchmarks.peers.{peer}", "--model", str(setup.model.resolve())]
        command += ["--dtype", setup.dtype, "--threads", str(setup.threads), "--method", method]
        command += ["--eos", *map(str, setup.eos)] if setup.eos else []
        root = setup.checkouts[checkout].resolve() if checkout else _ROOT
        plugins = os.pathsep.join(map(str, sorted((root / "plugins").glob("specdec-*"))))
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                cwd=root,
                env={**os.environ, "PYTHONPATH": plugins} if checkout else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                start_new_session=True,  # Ctrl-C comes to the parent alone, which ends its processes in order
            )
        except OSError as error:
            self._errors.close()
            raise PeerError(f"{name}: {python} doesn't start: {error}") from error
        try:
            self.versions: str = self._reply()["versions"]
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """The process's id, and its group's."""
        return self._process.pid

    def decode(self, prompt: list[int], max_new_tokens: int) -> dict[str, Any]:
        """A prompt's reply, as ``worker`` describes it."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # the reply that doesn't come says why
            self._process.stdin.write(json.dumps({"prompt": prompt, "max_new_tokens": max_new_tokens}) + "\n")
            self._process.stdin.flush()
        reply = self._reply()
        self._signal(signal.SIGSTOP)
        return reply

    def close(self) -> None:
        """End the process and its children."""
        if self._errors.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._signal(signal.SIGCONT)
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
        finally:  # also where a second Ctrl-C comes
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            tail = "".join(self._errors.readlines()[-_LAST_LINES:]).strip()
            raise PeerError(f"{self.name}: ended with exit code {code}\n{tail}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
