"""Connections: however many clients open them and send nothing, half of something, or don't read, others are served."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from specdec import Generator
from specdec.apps.serving import event_stream as connection
from specdec.apps.serving import process as running
from specdec.apps.serving.connections import Connection, ConnectionMiddleware, Connections
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.server import Server
from tests.support.built_in_model import built_in
from tests.support.waiting import soon

HALF_HEADER = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Half"
HALF_BODY = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 500\r\n\r\n{"model": "demo",'
)
SHORT = {"model": "demo", "prompt": "# heapq", "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module", name="generator")
def _generator() -> Iterator[Generator]:
    with Generator(*built_in(), proposer="autoregressive") as generator:
        yield generator


@contextmanager
def process(generator: Generator, **options: object) -> Iterator[tuple[str, int]]:
    """A server as ``specdec serve`` runs it, but for signals: its host and port."""
    server = Server(generator, ServerOptions.model_validate({"name": "demo", **options}), "autoregressive")
    bound = running.bind("127.0.0.1", 0)
    bound.listen(64)
    host, port = bound.getsockname()
    http = running.http_process(server, bound)
    threads = [
        threading.Thread(target=server.engine.run),
        threading.Thread(target=lambda: asyncio.run(http.serve(sockets=[bound]))),
    ]
    for thread in threads:
        thread.start()
    try:
        yield host, port
    finally:
        http.should_exit = True
        for thread in reversed(threads):
            thread.join(30)
            assert not thread.is_alive()


def opened(stack: ExitStack, address: tuple[str, int], content: bytes = b"") -> socket.socket:
    """A connection on which a client has sent something."""
    client = stack.enter_context(socket.create_connection(address, timeout=20))
    client.sendall(content)
    return client


def closed(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection, which it must."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def trickle(client: socket.socket) -> None:
    """Send a letter at a time until the server has closed the connection, which raises an OSError."""
    client.settimeout(0.02)

    def sent() -> bool:
        client.sendall(b"x")
        with suppress(TimeoutError):
            client.recv(1 << 16)
        return False

    soon(sent)


def healthy(address: tuple[str, int]) -> bool:
    host, port = address
    return httpx.get(f"http://{host}:{port}/health", timeout=20).status_code == 200


@pytest.mark.parametrize(
    ("options", "content", "answer"),
    [
        ({"idle_timeout": 0.2, "header_timeout": 60}, b"", b""),
        ({"idle_timeout": 60, "header_timeout": 0.2}, HALF_HEADER, b"408"),
        ({"idle_timeout": 60, "header_timeout": 0.2}, b"G", b"408"),
        ({"idle_timeout": 0.2, "header_timeout": 60, "body_timeout": 0.2}, HALF_BODY, b"408"),
        ({"idle_timeout": 60, "header_timeout": 0.2}, HALF_HEADER[:20] + b"\0" * 20, b"408"),
    ],
    ids=["nothing", "half a header", "one letter", "half a body", "no header at all"],
)
def test_a_connection_without_a_request_is_closed(
    generator: Generator, options: dict[str, float], content: bytes, answer: bytes
) -> None:
    with process(generator, **options) as address, ExitStack() as stack:
        assert answer in closed(opened(stack, address, content))
        assert healthy(address)


def test_letters_that_trickle_dont_move_the_deadline(generator: Generator) -> None:
    with process(generator, header_timeout=0.3, idle_timeout=600) as address, ExitStack() as stack:
        client = opened(stack, address, b"GET / HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            trickle(client)


def test_a_second_request_has_a_deadline_too(generator: Generator) -> None:
    with process(generator, header_timeout=0.2, idle_timeout=60) as address, ExitStack() as stack:
        client = opened(stack, address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in client.recv(1 << 16)
        client.sendall(HALF_HEADER)
        assert b"408" in closed(client)


def test_a_request_that_takes_long_isnt_cut(generator: Generator) -> None:
    with process(generator, header_timeout=0.1, idle_timeout=0.1) as (host, port):
        body = {**SHORT, "max_tokens": 60}
        answer = httpx.post(f"http://{host}:{port}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 60


@pytest.mark.parametrize("content", [b"", HALF_HEADER, HALF_BODY], ids=["idle", "half headers", "half bodies"])
def test_the_oldest_connection_without_a_request_makes_room(generator: Generator, content: bytes) -> None:
    with process(generator, max_connections=8, idle_timeout=60, header_timeout=60, body_timeout=60) as address:
        with ExitStack() as stack:
            clients = [opened(stack, address, content) for _ in range(20)]
            assert healthy(address)
            for client in clients[:12]:
                assert closed(client) == b""
            clients[-1].settimeout(0.05)
            with pytest.raises(TimeoutError):
                clients[-1].recv(1)
        assert healthy(address)


def test_requests_under_way_leave_connections_to_health_checks(generator: Generator) -> None:
    with process(generator, max_connections=6, max_batch_size=8) as (host, port), ExitStack() as stack:
        url = f"http://{host}:{port}"
        long = {**SHORT, "max_tokens": 450, "stream": True}
        for _ in range(2):
            response = stack.enter_context(httpx.stream("POST", f"{url}/v1/completions", json=long, timeout=60))
            assert response.status_code == 200
        refused = httpx.post(f"{url}/v1/completions", json=SHORT, timeout=20)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert healthy((host, port))


class Transport(asyncio.Transport):
    """A transport that uvicorn has closed, and that unsent bytes keep open."""

    unsent, is_dropped = 10_000, False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_dropped = True

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True


def connected() -> tuple[Connections, Connection, Transport]:
    connections, transport = Connections(8, header_timeout=60, idle_timeout=60), Transport()
    config = uvicorn.Config(ConnectionMiddleware, log_config=None)
    made = Connection(config, ServerState(), {}, connections)
    made.connection_made(transport)
    return connections, made, transport


@pytest.mark.parametrize(("num_read", "is_dropped"), [(0, True), (1000, False)], ids=["nothing", "slowly"])
def test_a_client_that_reads_nothing_of_its_answer_is_dropped(num_read: int, is_dropped: bool) -> None:
    async def expired() -> bool:
        _, client, transport = connected()
        transport.unsent -= num_read
        client._expire()
        client._cancel_deadline()
        return transport.is_dropped

    assert asyncio.run(expired()) is is_dropped


def test_a_connection_that_is_lost_while_its_request_is_read_isnt_counted() -> None:
    async def lost() -> list[int]:
        connections, client, _ = connected()
        counts = [connections.num_open]
        client.begin()
        client.connection_lost(None)
        client.take_up()
        counts.append(connections.num_open)
        client.end()
        return [*counts, connections.num_open]

    assert asyncio.run(lost()) == [1, 0, 0]


def test_without_a_descriptor_to_accept_with_the_oldest_is_closed_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from specdec.apps.serving import connections

    monkeypatch.setattr(connections, "_PAUSE", 60)
    monkeypatch.setattr(logging.getLogger("specdec.serving"), "propagate", True)

    class Waiting:
        is_dropped = False

        def drop(self) -> None:
            self.is_dropped = True

    async def starved() -> list[bool]:
        async def failing(_: socket.socket) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", failing)
        found, clients = connections.Connections(8, 60, 60), [Waiting(), Waiting()]
        for client in clients:
            found.wait(client)  # type: ignore[arg-type]  # it can be dropped
        with socket.socket() as listening, suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await found.accept(listening, lambda: pytest.fail("nothing was accepted"))
        return [client.is_dropped for client in clients]

    assert asyncio.run(starved()) == [True, False]
    (record,) = [each for each in caplog.records if getattr(each, "event", "") == "not_accepted"]
    assert "Too many open files" in vars(record)["reason"]


def test_clients_that_ask_much_and_read_nothing_are_dropped(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LONGEST_SEND", 0.2)
    with process(generator, idle_timeout=0.2) as address, ExitStack() as stack:
        asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
        client = stack.enter_context(socket.create_connection(address, timeout=20))
        client.setblocking(False)
        sent = client.send(asked)
        assert sent > 50_000
        metrics, alone = f"http://{address[0]}:{address[1]}/metrics", b'\nspecdec_connections{model_name="demo"} 1.0'
        assert soon(lambda: alone in httpx.get(metrics, timeout=60).content), "its connection is still open"
