"""The application: its routes, the playground's files, and errors in OpenAI's shape."""

from collections.abc import Callable, Coroutine
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

import specdec
from specdec.apps.serving.connections import ConnectionMiddleware
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.event_stream import Json
from specdec.apps.serving.middleware import RequestMiddleware
from specdec.apps.serving.responses_api.body import ResponsesBody
from specdec.apps.serving.schemas import ChatBody, CompletionBody
from specdec.apps.serving.server import Server
from specdec.apps.serving.transcriptions.endpoint import FORM
from specdec.errors import in_one_line

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_PAGE = {
    "/": ("index.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    "/playground.js": ("playground.js", "text/javascript"),
}
_REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"description": said}
    for status, said in {
        400: "a field is invalid; the message names it", 401: "a key is missing or wrong", 404: "the model is unknown",
        408: "the body is late", 413: "the body is too large", 429: "the queue is full", 503: "shutting down",
    }.items()
}  # fmt: skip
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_LOOPBACK = "localhost", "127.0.0.1", "::1"


class _RawBody(APIRoute):
    """A route whose body is documented in the API's description, but parsed by the server itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            answer: Response = await self.endpoint(None, request)
            return answer

        return handle


def application(server: Server, address: str) -> ASGIApp:
    """Return the ASGI application of a server.

    Args:
        server: the server that answers.
        address: the address that it listens on. On a loopback address, requests with any other host name are refused,
            because a foreign page may send them by DNS rebinding.
    """
    app = FastAPI(
        title="specdec",
        version=specdec.__version__,
        lifespan=server.running,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.route_class = _RawBody
    _add_models(app, server)
    _add_health(app, server)
    for path, (name, kind) in _PAGE.items():
        _get(app, path, include_in_schema=False)(_page(name, kind))
    app.exception_handler(ApiError)(_refused)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(Exception)(_failed)
    hosts = {*server.options.hosts}
    if ip_address(address).is_loopback:
        hosts |= {address, *_LOOPBACK}
    gate: ASGIApp = RequestMiddleware(app, server.options, server.metrics, hosts)
    if server.options.origins:
        gate = CORSMiddleware(  # outside the middleware, so that pages may read its answers as well
            gate,
            allow_origins=[*server.options.origins],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return ConnectionMiddleware(gate)


def _get(app: FastAPI, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
    """Register a route for GET and HEAD; HTTP omits the body for HEAD."""

    def add(endpoint: Endpoint) -> Endpoint:
        app.head(path, include_in_schema=False)(endpoint)
        app.get(path, **options)(endpoint)
        return endpoint

    return add


def _add_models(app: FastAPI, server: Server) -> None:
    """Register OpenAI's paths."""

    @app.post("/v1/chat/completions", responses=_REFUSED)
    async def chat(body: ChatBody, request: Request) -> Response:
        return await server.chat(request)

    @app.post("/v1/completions", responses=_REFUSED)
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await server.completion(request)

    @app.post("/v1/responses", responses=_REFUSED)
    async def responses(body: ResponsesBody, request: Request) -> Response:
        return await server.responses(request)

    @app.post("/v1/audio/transcriptions", responses=_REFUSED, openapi_extra=FORM)
    async def transcriptions(request: Request) -> Response:
        return await server.transcriptions.answer(request)

    @_get(app, "/v1/models")
    async def models() -> Response:
        return Json({"object": "list", "data": [server.model()]})

    @_get(app, "/v1/models/{name:path}", responses=_REFUSED)
    async def model(name: str) -> Response:
        if name != server.options.name:
            raise ApiError(404, f"The model `{name}` does not exist.", "model", "model_not_found")
        return Json(server.model())


def _add_health(app: FastAPI, server: Server) -> None:
    """Register the paths for operators."""

    @_get(app, "/livez")
    async def livez() -> Response:
        """Return 503 if the process must be restarted."""
        fault = server.engine.fault
        return Json({"status": "failed", "reason": fault}, 503) if fault else Json({"status": "ok"})

    @_get(app, "/readyz")
    async def readyz() -> Response:
        """Return 503 if no requests should be sent: while the server shuts down, or after it has failed."""
        if not server.engine.fault and server.admission.is_closed:
            return Json({"status": "draining"}, 503)
        return await livez()

    _get(app, "/health")(readyz)

    @_get(app, "/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4")


def _page(name: str, kind: str) -> Callable[[], Any]:
    content = files("specdec.apps.serving").joinpath("playground", name).read_bytes()
    headers = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"}

    async def page() -> Response:
        return Response(content, media_type=kind, headers=headers)

    return page


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "it is registered for those"
    return Json(error.body, error.status, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return await _refused(request, ApiError(500, f"The server failed: {in_one_line(error)}", code="server_failed"))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for those"
    message = f"{request.method} {request.url.path}: {error.detail}"
    return await _refused(request, ApiError(error.status_code, message, headers=error.headers))
