"""The application: its routes, and what lies between a body and its answer."""

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import specdec
from specdec.generator import Generator
from specdec.plugins.registry import load_plugins
from specdec.serving.admission import Admission
from specdec.serving.calls import Call, Intake
from specdec.serving.connection import ClientGone, EventStream, Json, while_connected
from specdec.serving.engine import Engine, Job, Progress
from specdec.serving.errors import ApiError, of_validation
from specdec.serving.gate import Gate
from specdec.serving.metrics import Metrics, Stopwatch
from specdec.serving.offers import Offers
from specdec.serving.options import ServerOptions
from specdec.serving.schemas import ChatBody, CompletionBody
from specdec.serving.shapes import ChatShape, CompletionShape, Shape

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_PAGE = {"/": ("index.html", "text/html"), "/playground.css": ("playground.css", "text/css")} | {
    "/playground.js": ("playground.js", "text/javascript")
}
_REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"description": said}
    for status, said in {
        400: "a field is wrong, and named", 401: "a key is missing or wrong", 404: "the model is unknown",
        408: "the body did not come", 413: "the body is too large", 429: "the queue is full", 503: "shutting down",
    }.items()
}  # fmt: skip
_LOOPBACK = "localhost", "127.0.0.1", "[::1]", "testserver"


class Server:
    """A model's server: the parts that routes share, from start to shutdown.

    Args:
        generator: nobody else decodes with it meanwhile.
        strategy: the name of the generator's strategy.
    """

    def __init__(self, generator: Generator, options: ServerOptions, strategy: str) -> None:
        self.options, self.strategy = options, strategy
        self.metrics = Metrics()
        self.offers = Offers(load_plugins(), options.offered)
        self.admission = Admission(options.max_batch_size, options.max_queue)
        self.engine = Engine(
            generator,
            max_batch_size=options.max_batch_size,
            max_prefix_bytes=options.max_prefix_bytes,
            observe=self.metrics.observe,
        )
        # The engine decodes tokens while prompts are encoded, and a tokenizer may serve one thread only.
        tokenizer = copy.deepcopy(generator.tokenizer)
        self._intake = Intake(generator, tokenizer, self.offers, options, strategy)
        self._encoder = ThreadPoolExecutor(1, "specdec-encoder")
        self._fingerprint = f"specdec-{specdec.__version__}-{generator.numerics.mode}"
        self._created = int(time.time())
        self._log = logging.getLogger("specdec.serving")

    @asynccontextmanager
    async def running(self, app: object) -> AsyncIterator[None]:
        """Connect the engine, which another thread runs, to the event loop, and stop it at the end."""
        self.engine.speak_on(asyncio.get_running_loop())
        try:
            yield
        finally:
            self.engine.stop()
            self._encoder.shutdown()

    async def chat(self, body: ChatBody, request: Request) -> Response:
        return await self._answer(request, body.stream, body, self._intake.chat, ChatShape)

    async def completion(self, body: CompletionBody, request: Request) -> Response:
        return await self._answer(request, body.stream, body, self._intake.completion, CompletionShape)

    def model(self) -> dict[str, Any]:
        """The model as /v1/models tells of it."""
        return {
            "id": self.options.name,
            "object": "model",
            "created": self._created,
            "owned_by": "specdec",
            "strategy": self.strategy,
            "strategies": self.offers.names,
        }

    async def _answer(
        self,
        request: Request,
        streams: bool | None,
        body: Any,
        make: Callable[[Any], Call],
        shape: type[Shape],
    ) -> Response:
        call = await asyncio.get_running_loop().run_in_executor(self._encoder, make, body)
        told = request.state.told
        told |= {"prompt_tokens": call.num_prompt_tokens, "texts": len(call.prompts), "strategy": call.strategy}
        if self.options.logs_prompts:
            told["body"] = body.model_dump(exclude_none=True)
        answer = shape(call, self.options.name, self._fingerprint)
        parts = self._parts(call, answer, request)
        if not streams:

            async def whole() -> Response:
                async for _ in parts:
                    pass
                return Json(answer.answer())

            try:
                return await while_connected(request.receive, whole())
            except ClientGone:
                return Response(status_code=499)
        # The status is known once the first token is: until then, a refusal has one of its own.
        try:
            first = await while_connected(request.receive, _first(parts))
        except ClientGone:
            await parts.aclose()  # type: ignore[attr-defined]  # it is a generator
            return Response(status_code=499)
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(self._streamed(first, parts, answer, include_usage))

    async def _streamed(
        self, first: list[Progress], parts: AsyncIterator[list[Progress]], answer: Shape, include_usage: bool
    ) -> AsyncIterator[list[Mapping[str, Any]]]:
        try:
            yield [*answer.beginning(), *map(answer.chunk, first)]
            async for progress in parts:
                yield [*map(answer.chunk, progress)]
            if include_usage:
                yield [answer.end()]
        except ApiError as error:
            yield [error.body]
        finally:
            await parts.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _parts(self, call: Call, answer: Shape, request: Request) -> AsyncIterator[list[Progress]]:
        """A call's progress, decoded as long as somebody listens."""
        with self.admission.of(len(call.prompts)) as place:
            self.metrics.queue.set(self.admission.num_waiting)
            job, watch = Job(call), Stopwatch(self.metrics, request.state.arrived)
            self.engine.submit(job)
            timer = asyncio.get_running_loop().call_later(self.options.timeout, self.engine.cancel, job)
            try:
                async for progress in job.news():
                    if any(each.token_ids for each in progress):
                        watch.tick()
                    elif watch.seconds_to_first is None and any(_was_cancelled(each) for each in progress):
                        raise self.admission.busy("The server is too busy: the request waited too long.")
                    for each in progress:
                        answer.note(each)
                    yield progress
                place.has_finished = True
            finally:
                timer.cancel()
                if not job.is_over:
                    job.is_over = True
                    self.engine.cancel(job)
                self._note_end(call, answer, watch, request)

    def _note_end(self, call: Call, answer: Shape, watch: Stopwatch, request: Request) -> None:
        usage, told = answer.usage(), request.state.told
        self.metrics.count_prompts(call.num_prompt_tokens, usage["prompt_tokens_details"]["cached_tokens"])
        self.metrics.whole.labels(request.url.path).observe(time.perf_counter() - request.state.arrived)
        self.metrics.queue.set(self.admission.num_waiting)
        told |= {"completion_tokens": usage["completion_tokens"], "steps": usage["speculation"]["steps"]}
        if watch.seconds_to_first is not None:
            told["first_token_seconds"] = round(watch.seconds_to_first, 4)
        if self.options.logs_prompts:
            told["texts_written"] = answer.texts


async def _first(parts: AsyncIterator[list[Progress]]) -> list[Progress]:
    return await anext(parts)


def _was_cancelled(progress: Progress) -> bool:
    return progress.result is not None and progress.result.finish_reason == "cancelled"


def application(server: Server, *, is_loopback: bool) -> Gate:
    """The ASGI application of a server.

    Args:
        server: what answers.
        is_loopback: requests that call the server by another name than this machine's are refused, as those are that
            a foreign page sends through a name of its own.
    """
    app = FastAPI(title="specdec", version=specdec.__version__, lifespan=server.running, docs_url=None, redoc_url=None)

    @app.post("/v1/chat/completions", responses=_REFUSED)
    async def chat(body: ChatBody, request: Request) -> Response:
        return await server.chat(body, request)

    @app.post("/v1/completions", responses=_REFUSED)
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await server.completion(body, request)

    @app.get("/v1/models")
    async def models() -> Response:
        return Json({"object": "list", "data": [server.model()]})

    @app.get("/v1/models/{name:path}", responses=_REFUSED)
    async def model(name: str) -> Response:
        if name != server.options.name:
            raise ApiError(404, f"The model `{name}` does not exist.", "model", "model_not_found")
        return Json(server.model())

    @app.get("/health")
    async def health() -> Response:
        if server.engine.fault:
            return Json({"status": "failed", "reason": server.engine.fault}, 503)
        return Json({"status": "draining"}, 503) if server.admission.is_closed else Json({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4")

    for path, (name, kind) in _PAGE.items():
        app.get(path, include_in_schema=False)(_page(name, kind))
    app.exception_handler(ApiError)(_told)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    if server.options.origins:
        allowed: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        app.add_middleware(CORSMiddleware, allow_origins=[*server.options.origins], **allowed)
    return Gate(app, server.options, server.metrics, _LOOPBACK if is_loopback else ())


def _page(name: str, kind: str) -> Callable[[], Any]:
    content = files("specdec.serving").joinpath("playground", name).read_bytes()
    headers = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"}

    async def page() -> Response:
        return Response(content, media_type=kind, headers=headers)

    return page


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "it is registered for those"
    return Json(error.body, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "it is registered for those"
    return await _told(request, of_validation(error.errors()))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for those"
    if error.status_code == 400:  # a body that isn't JSON
        return await _told(request, ApiError(400, "The body could not be parsed as JSON.", code="invalid_json"))
    message = f"{request.method} {request.url.path}: {error.detail}"
    return await _told(request, ApiError(error.status_code, message, headers=error.headers))
