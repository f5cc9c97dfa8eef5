"""From a request of /v1/audio/transcriptions to its answer."""

import asyncio
import copy
from typing import Any

from fastapi import Request
from starlette.responses import Response

from specdec.apps.in_transformers.custom_generate import custom_generate
from specdec.apps.serving.admission import Admission
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.event_stream import ClientGone, while_connected
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.transcriptions.form import TranscriptionForm, check_origin, parse_form
from specdec.apps.serving.transcriptions.response import response_of
from specdec.apps.serving.transcriptions.transcriber import Stop, Transcriber, transcribes
from specdec.generator import Generator

# The route's body, which isn't JSON, in the API's description.
FORM: dict[str, Any] = {
    "requestBody": {"content": {"multipart/form-data": {"schema": TranscriptionForm.model_json_schema()}}}
}


class TranscriptionEndpoint:
    """Answers transcriptions, one after another; for other models than those like Whisper it refuses them."""

    def __init__(self, generator: Generator, options: ServerOptions, admission: Admission) -> None:
        self._options, self._admission = options, admission
        model = generator.model
        self._transcriber: Transcriber | None = None
        if transcribes(model) and generator.processor is not None:
            decode = custom_generate(generator.proposer, verifier=generator.verifier, numerics=generator.numerics.mode)
            self._transcriber = Transcriber(model, copy.deepcopy(generator.processor), decode)

    @property
    def is_available(self) -> bool:
        """True for a model that transcribes, and continues no text."""
        return self._transcriber is not None

    async def answer(self, request: Request) -> Response:
        """Return a recording's transcript; raises ApiError if it is refused."""
        check_origin(request.headers, self._options.origins)
        form = parse_form(await request.body(), request.headers.get("content-type"))
        if form.model != self._options.name:
            message = f"The model `{form.model}` does not exist: this server has `{self._options.name}`."
            raise ApiError(404, message, "model", "model_not_found")
        if self._transcriber is None:
            raise ApiError(400, "This server's model doesn't transcribe: serve one like Whisper.", "model")
        leave, is_done = self._admission.enter(1), False
        stop = Stop(request.state.arrived + self._options.timeout)
        try:
            work = self._transcriber.thread.submit(self._transcriber.transcript, form, stop)
            transcript = await while_connected(request.receive, asyncio.wrap_future(work))
            is_done = True
        except ClientGone:
            return Response(status_code=499)
        finally:
            stop.set()
            leave(is_done)
        request.state.log_fields |= {"audio_seconds": round(transcript.seconds, 1)}
        return response_of(transcript, form)

    def close(self) -> None:
        """End the thread after its current recording."""
        if self._transcriber is not None:
            self._transcriber.close()
