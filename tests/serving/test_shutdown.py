"""A server's own process: it says where it is, serves with few descriptors, and on a signal ends what it has begun."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from specdec import cli, demo
from specdec.serving.process import bind
from tests.serving.test_connections import HALF_HEADER, healthy, opened

SERVE = f"ulimit -n 100; exec {sys.executable} -m specdec serve --port 0 --threads 1"


@contextmanager
def serving(log: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """A server's process, and the line with its address."""
    with log.open("wb") as stream, subprocess.Popen(["bash", "-c", SERVE], stderr=stream) as started:
        try:
            end = time.monotonic() + 120
            while "http://" not in log.read_text():
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield started, next(line for line in log.read_text().splitlines() if "http://" in line)
        finally:
            started.kill()


def test_whatever_is_opened_others_are_served_until_a_signal_after_which_what_was_accepted_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(log) as (started, line):
        url = line[line.index("http://") :].strip()
        _open_more_than_fit(url)
        written = log.read_text().partition(line)[2]
        assert len(written) < 10_000, written[:2000]
        for each in written.strip().splitlines():
            assert json.loads(each)["level"], "every logger writes JSON"
        _end_by_a_signal(started, url)


def _open_more_than_fit(url: str) -> None:
    """Open more connections than the process has descriptors, which send nothing or no request."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    address = (host, int(port))
    with ExitStack() as stack:
        for content in (b"", HALF_HEADER, b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"):
            for _ in range(101):
                opened(stack, address, content)
            assert healthy(address)


def _end_by_a_signal(started: "subprocess.Popen[bytes]", url: str) -> None:
    """The signal lets what was accepted end, and refuses what comes."""
    body = {"model": "demo", "prompt": "# heapq", "max_tokens": 300, "temperature": 0, "proposer": "off"}
    expected = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()["choices"][0]["text"]
    texts: list[str] = []

    def ask() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=120) as response:
            parts = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        texts.append("".join(part["choices"][0]["text"] for part in parts))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    started.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    refused = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    for thread in threads:
        thread.join()
    assert texts == [expected] * 4
    assert started.wait(20) == 0


def test_a_taken_address_is_reported_before_a_model_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "load", lambda: pytest.fail("the model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(sys, "argv", ["specdec", "serve", "--port", str(taken.getsockname()[1])])
        with pytest.raises(SystemExit) as left:
            cli.main()
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert "can't listen on" in err
    assert "--port" in err


def test_parts_of_a_stream_are_sent_at_once() -> None:
    async def is_undelayed() -> bool:
        found = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            found.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
            writer.close()

        async with await asyncio.start_server(accept, sock=bind("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.close()
            return bool(await found)

    assert asyncio.run(is_undelayed()), "Nagle's algorithm holds small parts back for 40 ms"
