"""A server's connections: limited by file descriptors, each with a deadline for its next request.

A client that sends nothing, half a header or half a body, or never reads its answer, occupies a file descriptor. Once
all are in use, no connection is accepted, not even for health checks. So a connection without a complete request has a
deadline, and if there is no room for a new connection, the one that has waited longest is closed.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

CONNECTION = "specdec.connection"  # key in the state of an ASGI scope
_RESERVED = 4  # connections reserved for short requests, such as health checks
_PAUSE = 0.1  # seconds before accepting again after a failure
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Connections:
    """All open connections of a server; used on the event loop only.

    Args:
        most: the maximum number of open connections.
        header_timeout: seconds within which a request's header must be complete, from its first byte.
        idle_timeout: seconds for which a connection stays open without a request.
    """

    def __init__(self, most: int, header_timeout: float, idle_timeout: float) -> None:
        self._most, self.header_timeout, self.idle_timeout = most, header_timeout, idle_timeout
        self._waiting: dict[Connection, None] = {}  # those without a complete request; the oldest is first
        self._taken_up: set[Connection] = set()
        self._has_changed = asyncio.Event()
        self._log = logging.getLogger("specdec.serving")

    @property
    def num_open(self) -> int:
        """The number of open connections."""
        return len(self._waiting) + len(self._taken_up)

    @property
    def is_nearly_full(self) -> bool:
        """True if only the connections reserved for short requests are left."""
        return len(self._taken_up) >= max(1, self._most - _RESERVED)

    def wait(self, connection: "Connection") -> None:
        """Register a connection without a complete request."""
        self._taken_up.discard(connection)
        self._waiting[connection] = None
        self._has_changed.set()

    def take_up(self, connection: "Connection") -> None:
        """Register that a connection's request is complete."""
        self._waiting.pop(connection, None)
        self._taken_up.add(connection)

    def remove(self, connection: "Connection") -> None:
        """Remove a closed connection."""
        self._waiting.pop(connection, None)
        self._taken_up.discard(connection)
        self._has_changed.set()

    async def accept(self, listening: socket.socket, make: "Callable[[], Connection]") -> None:
        """Accept connections until cancelled, each once there is room for it.

        asyncio's own server accepts all waiting connections at once, and retries at once when descriptors run out.
        """
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            await self._room()
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:  # no descriptor is left, for example
                self._log.warning("no connection is accepted", extra={"event": "not_accepted", "reason": str(error)})
                self._close_oldest()
                await asyncio.sleep(_PAUSE)
                continue
            try:
                await loop.connect_accepted_socket(make, accepted)
            except OSError:  # it has been closed meanwhile
                accepted.close()

    async def _room(self) -> None:
        while self.num_open >= self._most:
            self._has_changed.clear()
            self._close_oldest()
            await self._has_changed.wait()

    def _close_oldest(self) -> None:
        if self._waiting:
            next(iter(self._waiting)).drop()


class Connection(H11Protocol):
    """uvicorn's connection with deadlines; it is in the state of each request's ASGI scope."""

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], connections: Connections
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self})
        self._own = connections
        self._num_requests = 0  # complete header, and the answer hasn't ended
        self._has_begun = False  # a header
        self._unsent = 0  # bytes of answers, when the deadline was set
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._own.wait(self)
        self._expect_request(self._own.idle_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._own.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._num_requests and not self._has_begun:
            self._has_begun = True  # later data doesn't move the deadline
            self._expect_request(self._own.header_timeout)
        super().data_received(data)

    @property
    def is_among_the_last(self) -> bool:
        """True if only connections reserved for short requests are left, so that a long one should be refused."""
        return self._own.is_nearly_full

    def begin(self) -> None:
        """Called when a request's header is complete."""
        self._num_requests += 1
        self._cancel_deadline()

    def take_up(self) -> None:
        """Called when the whole request was received: the connection stays open until it is answered."""
        if self in self.connections:  # uvicorn's, of those that aren't lost
            self._own.take_up(self)

    def end(self) -> None:
        """Called when a request was answered or refused."""
        self._num_requests -= 1
        if not self._num_requests and self in self.connections:
            self._has_begun = False
            self._own.wait(self)
            self._expect_request(self._own.idle_timeout)

    def drop(self) -> None:
        """Close immediately, even during an answer."""
        self._own.remove(self)
        self.transport.abort()

    def _expect_request(self, seconds: float) -> None:
        self._cancel_deadline()
        self._unsent = self.transport.get_write_buffer_size()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent < self._unsent:  # its client reads an answer, slowly
            self._expect_request(self._own.idle_timeout)
            return
        if self._has_begun and not unsent and not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)
            self.transport.close()
        else:
            self.drop()


class ConnectionMiddleware:
    """Wraps an application, and reports the start and end of each request to its connection.

    Args:
        app: the outermost application, since each layer may answer by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection | None = scope.get("state", {}).get(CONNECTION)
        if connection is None:
            await self._app(scope, receive, send)
            return
        connection.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            connection.end()
