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

from specdec.apps.serving.process import bind
from tests.apps.serving.test_connections import HALF_HEADER, healthy, opened

SERVE = f"ulimit -n 100; exec {sys.executable} -m specdec serve --port 0 --threads 1"


@contextmanager
def serving(log: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """A server's process, and the line with its address."""
    with log.open("wb") as stream, subprocess.Popen(["bash", "-c", SERVE], stderr=stream) as started:
        try:
            end = time.monotonic() + 600
            while "http://" not in log.read_text():
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield started, next(line for line in log.read_text().splitlines() if "http://" in line)
        finally:
            started.kill()


def test_whatever_is_opened_others_are_served_until_a_signal_after_which_what_was_accepted_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(log) as (started, line), ExitStack() as stack:
        url = line[line.index("http://") :].strip()
        _open_more_than_fit(stack, url)
        written = log.read_text().partition(line)[2]
        assert len(written) < 10_000, written[:2000]
        for each in written.strip().splitlines():
            assert json.loads(each)["level"], "every logger writes JSON"
        _end_by_a_signal(started, url)


def _open_more_than_fit(stack: ExitStack, url: str) -> None:
    """Open more connections than the process has descriptors, which send nothing or no request."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    address = (host, int(port))
    for content in (b"", HALF_HEADER, b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"):
        for _ in range(101):
            opened(stack, address, content)
        assert healthy(address)


def _end_by_a_signal(started: "subprocess.Popen[bytes]", url: str) -> None:
    """The signal lets what was accepted end, and refuses what comes."""
    body = {"model": "demo", "prompt": "# heapq", "max_tokens": 200, "temperature": 0, "proposer": "off"}
    expected = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()["choices"][0]["text"]
    texts: list[str] = []

    begun = threading.Semaphore(0)

    def ask() -> None:
        parts = []
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=120) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    parts.append(json.loads(line[6:])["choices"][0]["text"])
                    if len(parts) == 1:
                        begun.release()
        texts.append("".join(parts))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=60)
    started.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    refused = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    for thread in threads:
        thread.join()
    assert texts == [expected] * 4
    assert started.wait(60) == 0


def test_a_taken_address_is_reported_before_a_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "specdec", "serve", "--port", str(taken.getsockname()[1])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "can't listen on" in ended.stderr
    assert "--port" in ended.stderr


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
