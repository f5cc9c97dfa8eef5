"""The answers of /v1/audio/transcriptions."""

from typing import Any

from starlette.responses import PlainTextResponse, Response

from specdec.apps.serving.event_stream import Json
from specdec.apps.serving.transcriptions.form import TranscriptionForm
from specdec.apps.serving.transcriptions.transcriber import Transcript


def response_of(transcript: Transcript, form: TranscriptionForm) -> Response:
    """Return a transcript in the requested format."""
    text = transcript.text.strip()
    if form.response_format == "text":
        return PlainTextResponse(f"{text}\n")
    if form.response_format == "json":
        return Json({"text": text})
    return Json(
        {
            "task": "transcribe",
            "language": transcript.language or "english",
            "duration": round(transcript.seconds, 3),
            "text": text,
            "segments": _segments(transcript, form.temperature),
        }
    )


def _segments(transcript: Transcript, temperature: float) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "start": round(segment.start, 2),
            "end": round(segment.end, 2),
            "text": segment.text,
            "tokens": segment.token_ids,
            "temperature": temperature,
        }
        for number, segment in enumerate(transcript.segments)
    ]
