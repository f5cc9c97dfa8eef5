"""A server's own process: it says where it is, serves, and on a signal finishes what it has begun."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from specdec.serving.process import bind


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "specdec", "serve", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        line = next(line for line in started.stderr if "http://" in line)
        yield started, line[line.index("http://") :].strip()
        started.kill()


def test_a_signal_lets_what_was_accepted_end_and_refuses_what_comes(process: tuple[subprocess.Popen[str], str]) -> None:
    started, url = process
    body = {"model": "demo", "prompt": "# heapq", "max_tokens": 450, "temperature": 0, "proposer": "off"}
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
