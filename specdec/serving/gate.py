"""The gate: what every request passes before a route sees it, and what is written of it afterwards."""

import asyncio
import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec.serving.connection import Json
from specdec.serving.errors import ApiError
from specdec.serving.metrics import Metrics
from specdec.serving.options import ServerOptions

_OPEN = {"/", "/health", "/playground.css", "/playground.js"}  # paths that need no key
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """Gives requests an id, checks their key and the size of their body, counts them and logs them.

    Args:
        app: the application behind it.
        hosts: names by which the server may be called; any where there are none.
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
        began, status = time.perf_counter(), 499  # as of a client that closed the connection
        told: MutableMapping[str, Any] = {"id": uuid.uuid4().hex}
        scope.setdefault("state", {})["told"] = told
        scope["state"]["arrived"] = began

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                headers.append((b"x-request-id", told["id"].encode()))
                headers += [(name.encode(), value.encode()) for name, value in _SAFE.items()]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, await self._with_body(scope, receive), sending)
        except ApiError as error:
            await Json(error.body, error.status, error.headers)(scope, receive, sending)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.requests.labels(path, str(status)).inc()
            record = {"event": "request", "method": scope["method"], "path": path, "status": status, **told}
            record["seconds"] = round(time.perf_counter() - began, 4)
            self._log.info("request", extra=record)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = _name_of(headers.get(b"host", b"").decode("latin-1"))
        if self._hosts and host not in self._hosts:
            message = f"This server isn't known as {host!r}: call it by its address, or start it with --allowed-host."
            raise ApiError(403, message, code="unknown_host")
        if not self._keys or scope["path"] in _OPEN or scope["method"] == "OPTIONS":
            return
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = _digest(key.strip())
        is_known = [hmac.compare_digest(given, own) for own in self._keys]  # all of them, for the time it takes
        if kind.lower() != b"bearer" or not any(is_known):
            message = "Incorrect API key provided." if key else "No API key was given: send it as a bearer token."
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body within its bounds, and give what says it again."""
        body, most = bytearray(), self._options.max_body_bytes
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._options.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        break
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


def _name_of(host: str) -> str:
    """The name in a Host header, without a port and an IPv6 address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rsplit(":", 1)[0].lower()


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body is larger than {most} bytes.", code="body_too_large")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
