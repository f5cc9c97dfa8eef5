"""The engine: the thread that decodes. Other threads submit jobs, and receive the events of each step on their event
loop.

The engine should run on the thread that loaded the model. OpenMP keeps a thread pool for each computing thread, and
once there are more threads than cores, they stop busy-waiting for each other: on two cores a step takes 1.4 times as
long.
"""

import asyncio
import logging
import queue
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.jobs import Job, JobProgress, JobText
from specdec.apps.serving.logprobs import TokenLogprob, logprobs_of, prompt_logprobs_of
from specdec.apps.serving.step_events import report_of
from specdec.apps.serving.token_texts import TokenTexts
from specdec.apps.serving.usage import Figures
from specdec.constraints.base import ConstraintError
from specdec.decoding.request_state import RequestState as Handle
from specdec.errors import RequestError, SpecdecError, in_one_line
from specdec.generator import Generator
from specdec.record import Outcome, RequestHandle, StepRecord
from specdec.runtime.open_batch import OpenBatch

_MOST_FAILURES = 3  # consecutive failures of the engine itself
_IDLE_SECONDS = 0.5  # seconds without an order before idle time is used

Observer = Callable[[StepRecord, OpenBatch], None]


Order = tuple[Job, bool]  # a job, with True to start it or False to cancel it


class ServingEngine:
    """Decodes the calls of a server together, in one batch.

    Args:
        generator: used by the engine only.
        max_batch_size, max_prefix_bytes, max_guest_size: of the batch.
        observe: called on the engine's thread with each step's record.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        max_batch_size: int,
        max_prefix_bytes: int,
        observe: Observer,
        max_guest_size: float | None = None,
    ) -> None:
        self._observe = observe
        self._open = partial(
            generator.open_batch,
            max_batch_size=max_batch_size,
            max_prefix_bytes=max_prefix_bytes,
            max_guest_size=max_guest_size,
        )
        self._orders = queue.SimpleQueue[Order | None]()
        self._texts: dict[RequestHandle, JobText] = {}  # the engine thread's own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log = logging.getLogger("specdec.serving")
        self._texts_of = TokenTexts(generator.tokenizer)
        self._is_prepared = False  # no idle-time work is left
        self._has_ended = False  # all orders are refused
        self.fault = ""  # why it no longer decodes

    def set_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop on which events are delivered."""
        self._loop = loop

    def submit(self, job: Job) -> None:
        """Start decoding a job."""
        self._orders.put((job, True))
        if self._has_ended:  # possibly after the engine has refused the last one
            self._refuse_rest()

    def cancel(self, job: Job) -> None:
        """End a job's texts before the next pass; its sender receives their last events."""
        self._orders.put((job, False))

    def stop(self) -> None:
        """Stop ``run``, and end all running texts."""
        self._orders.put(None)

    def run(self) -> None:
        """Decode until ``stop`` is called."""
        num_failures, goes_on = 0, True
        while goes_on and num_failures < _MOST_FAILURES:
            try:
                with self._open() as batch:
                    while goes_on := self._take_orders(batch):
                        record = batch.advance()
                        if record is not None:
                            self._observe(record, batch)
                            self._publish(batch, record)
                            batch.check()
                            num_failures = 0
            except Exception as error:  # no request should cause this; the next attempt may succeed
                num_failures += 1
                self._log.exception("the engine failed", extra={"event": "engine_failed"})
                self._fail(ApiError(500, f"the engine failed: {in_one_line(error)}", code="engine_failed"))
        if goes_on:
            self.fault = "the engine has failed too often: the server must be restarted"
        self._fail(self._refusal())
        self._has_ended = True
        self._refuse_rest()

    def _refusal(self) -> ApiError:
        if self.fault:
            return ApiError(503, self.fault, code="engine_failed")
        return ApiError(503, "the server is shutting down", code="shutting_down")

    def _refuse_rest(self) -> None:
        with suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                if order is not None:
                    self._send([(order[0], self._refusal())])

    def _take_orders(self, batch: OpenBatch) -> bool:
        """Carry out all orders, waiting for one if nothing is decoding; return False once the engine should stop."""
        is_idle = not self._texts
        while is_idle or not self._orders.empty():
            order = self._next_order(batch)
            is_idle = False
            if order is None:
                return False
            job, begins = order
            if begins:
                self._begin(batch, job)
                if job.call.inputs is not None:  # encoding them takes time: other texts have a pass before the next
                    return True
            else:
                for handle in [handle for handle, text in self._texts.items() if text.job is job]:
                    batch.cancel(handle)
        return True

    def _next_order(self, batch: OpenBatch) -> Order | None:
        """Wait for an order; use the idle time to prepare better drafts."""
        while not self._is_prepared:
            with suppress(queue.Empty):
                return self._orders.get(timeout=_IDLE_SECONDS)
            self._is_prepared = batch.use_idle_time()
        return self._orders.get()

    def _begin(self, batch: OpenBatch, job: Job) -> None:
        if job.is_over:  # its sender has disconnected
            return
        call = job.call
        settings = {**call.settings, "seed": [*call.seeds]}
        prompts = [*call.prompts] if call.inputs is None else [call.inputs] * len(call.prompts)
        try:
            handles = batch.add(
                prompts,
                proposer=call.proposer,
                verifier=call.verifier,
                wants_text=True,
                reference=call.reference or None,
                **settings,
            )
        except SpecdecError as error:
            self._send([(job, ApiError(400, str(error), code="invalid_value"))])
            return
        refusal = next((fault for handle in handles if (fault := _refusal_of(handle, batch, call.params))), None)
        if refusal is not None:
            self._send([(job, refusal)])
        for index, handle in enumerate(handles):
            if isinstance(handle, Handle):
                self._texts[handle] = JobText(job, index, Figures(), is_echoed=not call.echoes)
                if refusal is not None:
                    handle.fail(refusal)

    def _publish(self, batch: OpenBatch, record: StepRecord) -> None:
        """Send each job its events of a step."""
        events: list[tuple[Job, JobProgress | Exception]] = []
        for outcome in record.outcomes:
            has_ended = outcome.finish_reason is not None
            text = self._texts.pop(outcome.request) if has_ended else self._texts[outcome.request]
            text.figures.note(outcome)
            text.prompt += [] if outcome.prompt_logprobs is None else [outcome.prompt_logprobs]
            if has_ended or not outcome.is_chunk:
                events.append((text.job, self._progress(batch, record, outcome, text)))
        self._send(events)

    def _progress(
        self, batch: OpenBatch, record: StepRecord, outcome: Outcome, text: JobText
    ) -> JobProgress | Exception:
        try:
            return self._progress_of(batch, record, outcome, text)
        except Exception as error:  # a tokenizer's error, for this text only
            return ApiError(500, f"the text can't be reported: {in_one_line(error)}", code="decoding_failed")

    def _progress_of(
        self, batch: OpenBatch, record: StepRecord, outcome: Outcome, text: JobText
    ) -> JobProgress | Exception:
        call, chunk = text.job.call, batch.chunk(outcome)
        if chunk.result is not None and chunk.result.error is not None:
            error = chunk.result.error
            if isinstance(error, RequestError):  # a constraint that exceeds a limit or allows no token
                return ApiError(400, str(error), code="invalid_value")
            return ApiError(500, str(error), code="decoding_failed")
        num_before = len(call.echoes[text.index].text) if call.echoes else 0
        progress = JobProgress(
            index=text.index,
            text=chunk.text,
            token_ids=chunk.token_ids,
            logprobs=logprobs_of(outcome, self._texts_of, call.num_logprobs, num_before),
            step=report_of(record, outcome, self._texts_of) if call.reports_steps else None,
            result=chunk.result,
            figures=text.figures if chunk.result is not None else None,
        )
        return progress if text.is_echoed else self._with_echo(progress, text)

    def _with_echo(self, progress: JobProgress, text: JobText) -> JobProgress | Exception:
        """Return a text's first progress with its prompt in front, or with the prompt alone."""
        if not progress.token_ids:  # figures of a part of the prompt would be wrong
            return ApiError(503, "the request was cancelled before its prompt was read", code="timeout")
        call, text.is_echoed = text.job.call, True
        echo, entries = call.echoes[text.index], tuple[TokenLogprob, ...]()
        if call.num_logprobs is not None:
            entries = prompt_logprobs_of(text.prompt, call.prompts[text.index], self._texts_of, echo)
        if call.has_completion:
            return replace(progress, text=echo.text + progress.text, logprobs=(*entries, *progress.logprobs))
        assert progress.result is not None, "one token is decoded"
        result = replace(progress.result, finish_reason="length")
        return replace(progress, text=echo.text, token_ids=(), logprobs=entries, result=result)

    def _fail(self, error: ApiError) -> None:
        jobs = {text.job for text in self._texts.values()}
        self._texts.clear()
        self._send([(job, error) for job in jobs])

    def _send(self, events: "list[tuple[Job, JobProgress | Exception]]") -> None:
        """Deliver the events of a step, all at once."""
        if events and self._loop is not None:
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(_deliver, events)


def _refusal_of(handle: Handle | Exception, batch: OpenBatch, params: tuple[str, str]) -> ApiError | None:
    """Return the error for a prompt that can't be served, or None; ``params`` as in ``Call``."""
    if not isinstance(handle, Handle):
        return ApiError(400, str(handle), None if isinstance(handle, ConstraintError) else params[0], "invalid_value")
    if batch.most_tokens is not None and handle.capacity > batch.most_tokens:
        message = (
            f"The prompt and its completion may have {handle.capacity} tokens, but this server has memory for the "
            f"keys and values of {batch.most_tokens}."
        )
        param = params[handle.prompt_length <= batch.most_tokens]
        return ApiError(400, message, param, "context_length_exceeded")
    return None


def _deliver(events: "list[tuple[Job, JobProgress | Exception]]") -> None:
    for job, event in events:
        job.receive(event)
