"""A model's server: from a request's body to its answer."""

import asyncio
import copy
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

import specdec
from specdec.apps.serving.admission import Admission, Leave
from specdec.apps.serving.answer_constraints import AnswerPlan
from specdec.apps.serving.body_parsing import check_content_type, parse
from specdec.apps.serving.body_threads import BodyThreads
from specdec.apps.serving.compilation import ConstraintCompiler
from specdec.apps.serving.content_parts import without_media
from specdec.apps.serving.engine import ServingEngine
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.event_stream import ClientGone, EventStream, Json, while_connected
from specdec.apps.serving.jobs import Job, JobProgress
from specdec.apps.serving.metrics import Metrics, RequestStopwatch
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.parsed_answer import AnswerPiece
from specdec.apps.serving.requests import Call, RequestParser
from specdec.apps.serving.response_bodies import ChatResponse, CompletionResponse, ResponseBuilder
from specdec.apps.serving.responses_api.as_chat import parse_responses, renamed
from specdec.apps.serving.responses_api.response import ResponsesResponse
from specdec.apps.serving.schemas import ChatBody, CompletionBody, Sampling, StreamOptions
from specdec.apps.serving.strategy_aliases import StrategyAliases
from specdec.apps.serving.transcriptions.endpoint import TranscriptionEndpoint
from specdec.constraints.cache import Compiled
from specdec.generator import Generator
from specdec.plugins.registry import load_plugins

_GONE = 499  # nginx's status for a client that has closed the connection; only for the log
Body = TypeVar("Body", bound=Sampling)
Step = Sequence[tuple[JobProgress, Sequence[AnswerPiece]]]  # with the pieces of each answer that the step completes
Parts = AsyncGenerator[Step, None]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """The steps from a request's body to its response, for one of OpenAI's paths.

    Attributes:
        parse: the body's content to a checked object.
        make: the body to a call, by the parser of its thread.
        builder: the class of the response, or what makes it, for a body.
    """

    parse: Callable[[bytes], Body]
    make: Callable[[RequestParser, Body], Call]
    builder: Callable[[Body], Callable[[Call, str, str, bool], ResponseBuilder]]


CHAT = Endpoint(partial(parse, kind=ChatBody), RequestParser.chat, lambda _: ChatResponse)
COMPLETION = Endpoint(partial(parse, kind=CompletionBody), RequestParser.completion, lambda _: CompletionResponse)
RESPONSES = Endpoint(parse_responses, RequestParser.chat, lambda body: partial(ResponsesResponse, body.origin))


class Server:
    """A model's server: the parts that routes share, from start to shutdown.

    Args:
        generator: used by the server only.
        strategy: the name of the generator's strategy.

    Attributes:
        notes: on the model and its strategies, found before the first request; never sent, since they may name files.
    """

    def __init__(self, generator: Generator, options: ServerOptions, strategy: str) -> None:
        self.options, self.strategy = options, strategy
        self.notes = dict[str, None]()  # in order
        self.metrics = Metrics(options.name)
        own = {strategy: generator.proposer}
        self.aliases = StrategyAliases(load_plugins(), options.offered, own, options.max_strategy_size)
        self.admission = Admission(options.max_batch_size, options.max_queue)
        self.engine = ServingEngine(
            generator,
            max_batch_size=options.max_batch_size,
            max_prefix_bytes=options.max_prefix_bytes,
            observe=self.metrics.observe,
            max_guest_size=options.max_strategy_size,
        )
        self.transcriptions = TranscriptionEndpoint(generator, options, self.admission)
        self._compiler = ConstraintCompiler(copy.deepcopy(generator.tokenizer), generator.shapes.vocab_size)
        # The engine decodes tokens while prompts are encoded, and only one thread may use a tokenizer.
        small, large = (
            RequestParser(
                generator,
                *copy.deepcopy((generator.tokenizer, generator.processor)),
                self.aliases,
                options,
                strategy,
                self._compiler.vocabulary,
            )
            for _ in range(2)
        )
        self._parser, self._threads = small, BodyThreads(small, large)
        self._has_chat_template = bool(getattr(generator.tokenizer, "chat_template", None))
        self._fingerprint = f"specdec-{specdec.__version__}-{generator.numerics.mode}"
        self._created = int(time.time())
        self.metrics.build.labels(specdec.__version__, generator.numerics.mode).set(1)

    @asynccontextmanager
    async def running(self, app: object) -> AsyncIterator[None]:
        """Connect the engine, which another thread runs, to the event loop; stop it at the end."""
        self.engine.set_event_loop(asyncio.get_running_loop())
        self._compiler.prepare()
        try:
            yield
        finally:
            self.engine.stop()
            self._threads.close()
            self._compiler.close()
            self.transcriptions.close()

    async def chat(self, request: Request) -> Response:
        """Answer a conversation; raises ApiError if it is refused or fails before its first token."""
        return await self._answer(request, CHAT)

    async def completion(self, request: Request) -> Response:
        """Complete prompts; raises as ``chat`` does."""
        return await self._answer(request, COMPLETION)

    async def responses(self, request: Request) -> Response:
        """Answer a conversation by OpenAI's newer API; raises as ``chat`` does."""
        try:
            return await self._answer(request, RESPONSES)
        except ApiError as error:
            raise renamed(error) from None

    def model(self) -> dict[str, Any]:
        """Return the model's entry in /v1/models."""
        return {
            "id": self.options.name,
            "object": "model",
            "created": self._created,
            "owned_by": "specdec",
            "strategy": self.strategy,
            "strategies": self.aliases.names,
            "has_chat_template": self._has_chat_template,
        }

    async def _answer(self, request: Request, endpoint: Endpoint[Body]) -> Response:
        try:
            body, call, leave = await self._taken_up(request, endpoint)
        except ClientGone:
            return Response(status_code=_GONE)
        log_fields = request.state.log_fields
        log_fields |= {"prompt_tokens": call.num_prompt_tokens, "texts": len(call.prompts), "strategy": call.strategy}
        if self.options.logs_prompts:
            log_fields["body"] = without_media(body.model_dump(exclude_none=True))
        keeps_texts = not body.stream or self.options.logs_prompts
        answer = endpoint.builder(body)(call, self.options.name, self._fingerprint, keeps_texts)
        running = self._running(Job(call, leave), answer, request)
        try:
            if not body.stream:
                await while_connected(request.receive, _exhaust(running.parts))
                await running.close()
                return Json(answer.answer())
            # The status is sent with the first token, since until then a refusal may need another one.
            first = await while_connected(request.receive, anext(running.parts))
        except BaseException as error:
            await running.close()
            if isinstance(error, ClientGone):
                return Response(status_code=_GONE)
            raise
        events = _streamed(first, running.parts, answer, body.stream_options)
        return EventStream(events, running.close, answer.names_events)

    async def _taken_up(self, request: Request, endpoint: Endpoint[Body]) -> tuple[Body, Call, Leave]:
        """Return a request's body, its call, and what releases its place, which is done if the request is refused.

        Raises:
            ApiError: if the request is refused.
            ClientGone: if the client disconnects.
        """
        check_content_type(request.headers.get("content-type"), request.headers.get("content-encoding"))
        content = await request.body()
        parsing = self._threads.run(len(content), lambda _: endpoint.parse(content))
        body = await while_connected(request.receive, parsing)
        self._parser.check(body)
        leave = self.admission.enter(body.num_texts)
        try:
            size = math.inf if body.has_media else len(content)  # a small file may hold a large image
            encoding = self._threads.run(size, lambda parser: endpoint.make(parser, body))
            call = await while_connected(request.receive, encoding)
            if call.inputs is not None:
                leave = self.admission.with_inputs(leave, call.inputs.num_bytes)
            if call.plan.constraint is not None:
                constraint = await self._compiled(call.plan, request)
                call = replace(call, settings={**call.settings, "constraint": constraint})
            return body, call, leave
        except BaseException:
            leave(False)
            raise

    async def _compiled(self, plan: AnswerPlan, request: Request) -> Compiled | None:
        """Return a plan's constraint, compiled.

        Raises:
            ApiError: if it can't be enforced, or the request's time ends before.
            ClientGone: if the client disconnects.
        """
        try:
            async with asyncio.timeout(self._seconds_left(request)):
                return await while_connected(request.receive, self._compiler.compiled(plan))
        except TimeoutError:
            raise self.admission.busy("The server is too busy: the request's constraint waited too long.") from None

    def _seconds_left(self, request: Request) -> float:
        arrived: float = request.state.arrived
        return max(0.0, self.options.timeout - (time.perf_counter() - arrived))

    def _running(self, job: Job, answer: ResponseBuilder, request: Request) -> "_Running":
        """Run a job; its texts end early when its time is over."""
        watch = RequestStopwatch(self.metrics, request.state.arrived)
        timer = asyncio.get_running_loop().call_later(self._seconds_left(request), self.engine.cancel, job)
        self.engine.submit(job)

        async def close() -> None:
            timer.cancel()
            await parts.aclose()
            job.give_up()
            if not job.has_ended:
                self.engine.cancel(job)
            else:
                self.metrics.whole.labels(request.url.path).observe(time.perf_counter() - request.state.arrived)
            self._note_end(answer, watch, request)

        parts = self._parts(job, answer, watch)
        return _Running(parts, close)

    async def _parts(self, job: Job, answer: ResponseBuilder, watch: RequestStopwatch) -> Parts:
        """Yield a job's progress, and add it to the answer and the latencies."""
        async for progress in job.updates():
            if any(each.token_ids for each in progress):
                watch.tick()
            elif watch.seconds_to_first is None and any(_was_cancelled(each) for each in progress):
                raise self.admission.busy("The server is too busy: the request waited too long.")
            yield [(each, answer.note(each)) for each in progress]

    def _note_end(self, answer: ResponseBuilder, watch: RequestStopwatch, request: Request) -> None:
        usage, log_fields = answer.usage(), request.state.log_fields
        log_fields |= {"completion_tokens": usage["completion_tokens"], "steps": usage["speculation"]["steps"]}
        if watch.seconds_to_first is not None:
            log_fields["first_token_seconds"] = round(watch.seconds_to_first, 4)
        if notes := [note for note in answer.notes if note not in self.notes]:
            log_fields["notes"] = notes
        if self.options.logs_prompts:
            log_fields["texts_written"] = answer.texts


@dataclass(frozen=True, slots=True)
class _Running:
    """A running answer: its parts, and the function to call at its end."""

    parts: Parts
    close: Callable[[], Awaitable[None]]


async def _exhaust(parts: Parts) -> None:
    async for _ in parts:
        pass


async def _streamed(
    first: Step, parts: Parts, answer: ResponseBuilder, options: StreamOptions | None
) -> AsyncIterator[list[Mapping[str, Any]]]:
    """Yield the events of a streamed answer, one list per step."""
    options = options or StreamOptions()

    def chunks(step: Step) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = [part for each, pieces in step for part in answer.chunks(each, pieces)]
        if not options.continuous_usage_stats:
            return found
        usage = answer.usage()
        del usage["speculation"]  # complete only at the end
        return [{**each, "usage": usage} for each in found]

    try:
        yield [*answer.beginning(), *chunks(first)]
        async for step in parts:
            yield chunks(step)
        if options.include_usage:
            yield [answer.end()]
    except ApiError as error:
        yield [*answer.failure(error)]


def _was_cancelled(progress: JobProgress) -> bool:
    return progress.result is not None and progress.result.finish_reason == "cancelled"
