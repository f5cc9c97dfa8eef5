"""Runs work while the client is connected, and streams answers as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

Value = TypeVar("Value")
_LONGEST_SEND = 30.0  # seconds within which a client must read a part of its answer


class ClientGone(Exception):  # noqa: N818 - it isn't an error
    """The client has closed the connection."""


class Json(Response):
    """Encodes JSON as ASCII, because a client may have sent half of a surrogate pair."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return as_json(content)


def as_json(content: Any) -> bytes:
    """Encode as JSON without spaces."""
    return json.dumps(content, separators=(",", ":")).encode()


async def while_connected(receive: Receive, work: Awaitable[Value]) -> Value:
    """Run work while its client is connected; return its result.

    Raises:
        ClientGone: if the client disconnects; the work is cancelled.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, leaving):
            task.cancel()
        for task in (working, leaving):
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events, as in OpenAI's API: they have names, or the last one is ``[DONE]``.

    Args:
        events: the events of each list are sent together.
        close: called at the end, also if the client disconnects.
        has_names: each event's "type" is its name, and the last one ends the stream.
    """

    def __init__(
        self,
        events: AsyncIterator[list[Mapping[str, Any]]],
        close: Callable[[], Awaitable[object]],
        has_names: bool = False,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        del self.headers["Content-Length"]
        self._events, self._close, self._has_names = events, close, has_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await while_connected(receive, self._send_all(send))
        finally:
            await self._close()

    async def _send_all(self, send: Send) -> None:
        await sent(send, {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for events in self._events:
            body = b"".join(self._name(event) + b"data: " + as_json(event) + b"\n\n" for event in events)
            await sent(send, {"type": "http.response.body", "body": body, "more_body": True})
        last = b"" if self._has_names else b"data: [DONE]\n\n"
        await sent(send, {"type": "http.response.body", "body": last, "more_body": False})

    def _name(self, event: Mapping[str, Any]) -> bytes:
        return f"event: {event['type']}\n".encode() if self._has_names else b""


async def sent(send: Send, message: Message) -> None:
    """Send a message.

    Raises:
        ClientGone: if the client doesn't read it in time.
    """
    try:
        async with asyncio.timeout(_LONGEST_SEND):
            await send(message)
    except TimeoutError:
        raise ClientGone from None
