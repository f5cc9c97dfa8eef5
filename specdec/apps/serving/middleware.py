"""The middleware that checks every request before its route, and logs and counts it afterwards."""

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec.apps.serving.connections import CONNECTION
from specdec.apps.serving.errors import ApiError, busy
from specdec.apps.serving.event_stream import ClientGone, Json, sent
from specdec.apps.serving.metrics import Metrics
from specdec.apps.serving.options import ServerOptions

_OPEN = {"/", "/health", "/livez", "/readyz", "/playground.css", "/playground.js"}  # paths without an API key
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestMiddleware:
    """Gives requests an id, checks their key and the size of their body, counts them and logs them.

    Args:
        app: the next application.
        hosts: allowed host names; if empty, all are allowed.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: Metrics, hosts: Iterable[str] = ()) -> None:
        self._app, self._options, self._metrics = app, options, metrics
        self._keys = [_digest(key.encode()) for key in options.api_keys]
        self._hosts = {host.lower() for host in hosts}
        self._log = logging.getLogger("specdec.serving")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 499  # as for a client that closed the connection
        log_fields: MutableMapping[str, Any] = {"id": _id_of(scope)}
        scope.setdefault("state", {})["log_fields"] = log_fields
        scope["state"]["arrived"] = began

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                headers.append((b"x-request-id", log_fields["id"].encode()))
                headers += [(name.encode(), value.encode()) for name, value in _SAFE.items()]
            await sent(send, message)

        try:
            self._check(scope)
            receive = await self._with_body(scope, receive)
            self._take_up(scope)
            await self._app(scope, receive, sending)
        except ClientGone:
            pass
        except ApiError as error:
            await Json(error.body, error.status, error.headers)(scope, receive, sending)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.requests.labels(path, str(status)).inc()
            record = {"event": "request", "method": scope["method"], "path": path, "status": status, **log_fields}
            record["seconds"] = round(time.perf_counter() - began, 4)
            self._log.info("request", extra=record)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = _name_of(headers.get(b"host", b"").decode("latin-1"))
        if _CONTROL.search(scope["path"]):  # a route's pattern would accept a newline at the end
            raise ApiError(404, f"{scope['method']} {scope['path']!r}: Not Found")
        if self._hosts and host not in self._hosts:
            message = f"Unknown host name {host!r}: use the server's address, or start it with --allowed-host."
            raise ApiError(403, message, code="unknown_host")
        if not self._keys or scope["path"] in _OPEN or scope["method"] == "OPTIONS":
            return
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = _digest(key.strip())
        is_known = [hmac.compare_digest(given, own) for own in self._keys]  # all of them, for the time it takes
        if kind.lower() != b"bearer" or not any(is_known):
            message = "Incorrect API key provided." if key else "No API key was given: send it as a bearer token."
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    @staticmethod
    def _take_up(scope: Scope) -> None:
        """Keep the connection open for the answer; without effect if another server runs the application."""
        connection = scope["state"].get(CONNECTION)
        if connection is None:
            return
        if scope["method"] == "POST" and connection.is_among_the_last:
            raise busy("Too many requests are under way.", 1.0)
        connection.take_up()

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body within its limits; return a function that receives it again.

        Raises:
            ApiError: if the body is too large or too slow.
            ClientGone: if the client disconnects before its end.
        """
        body, most = bytearray(), self._options.max_body_bytes
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._options.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientGone
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(408, "The body did not come in time.", code="timeout") from None
        is_first = True

        async def again() -> Message:
            nonlocal is_first
            if is_first:
                is_first = False
                return {"type": "http.request", "body": bytes(body), "more_body": False}
            return await receive()

        return again


def _id_of(scope: Scope) -> str:
    """Return the client's id of its request if it is allowed in headers and logs, else a new one."""
    given: bytes = dict(scope["headers"]).get(b"x-request-id", b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rsplit(":", 1)[0].lower()


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body is larger than {most} bytes.", code="body_too_large")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
