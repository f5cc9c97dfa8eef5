"""The response of /v1/responses, whole and as a stream of events."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.jobs import JobProgress
from specdec.apps.serving.parsed_answer import AnswerPiece
from specdec.apps.serving.requests import Call
from specdec.apps.serving.response_bodies import ResponseBuilder, logprob_entry
from specdec.apps.serving.responses_api.body import ResponsesBody
from specdec.apps.serving.responses_api.items import Event
from specdec.apps.serving.responses_api.output import OutputItems


class ResponsesResponse(ResponseBuilder):
    """Builds the response to one request; ``keeps_texts`` only concerns the log."""

    prefix, names_events = "resp_", True

    def __init__(self, body: ResponsesBody, call: Call, name: str, fingerprint: str, keeps_texts: bool) -> None:
        super().__init__(call, name, fingerprint, keeps_texts)
        self._body, self._output = body, OutputItems()
        self._events = deque[list[Event]]()  # of each ``note`` whose ``chunks`` is still to come
        self._num_events = 0
        self._num_reasoning_tokens = 0

    def note(self, progress: JobProgress) -> list[AnswerPiece]:
        pieces = super().note(progress)
        events = self._output.add(pieces, [*map(logprob_entry, progress.logprobs)])
        if pieces and all(piece.reasoning for piece in pieces):
            self._num_reasoning_tokens += len(progress.token_ids)
        if progress.result is not None:
            events += self._output.end(is_complete=self.finish_reason(0) != "length")
        if self._body.stream:
            self._events.append(events)
        return pieces

    def answer(self) -> dict[str, Any]:
        if self.finish_reason(0) != "length":
            return self._response("completed")
        # OpenAI has no name for the other causes: a time limit, a cancelled request.
        reason = "max_output_tokens" if self._finish[0] == "length" else None
        return self._response("incomplete", incomplete_details={"reason": reason})

    def beginning(self) -> list[dict[str, Any]]:
        kinds = "response.created", "response.in_progress"
        return self._numbered([{"type": kind, "response": self._response("in_progress")} for kind in kinds])

    def chunks(self, progress: JobProgress, pieces: Sequence[AnswerPiece]) -> list[dict[str, Any]]:
        events = self._events.popleft()
        if progress.result is not None:
            response = self.answer()
            events += [{"type": f"response.{response['status']}", "response": response}]
        return self._numbered(events)

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        failed = self._response("failed", error={"code": code, "message": str(error)})
        return self._numbered([{"type": "response.failed", "response": failed}])

    def _numbered(self, events: Sequence[Event]) -> list[Event]:
        """Return events with their numbers in the stream."""
        first, self._num_events = self._num_events, self._num_events + len(events)
        return [{**event, "sequence_number": number} for number, event in enumerate(events, first)]

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        """Return the response object, with the request's fields as OpenAI repeats them."""
        body, has_ended = self._body, status != "in_progress"
        text, reasoning = body.text, body.reasoning
        return {
            "id": self._head["id"],
            "object": "response",
            "created_at": self._head["created"],
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "model": self._head["model"],
            "output": self._output.as_list() if has_ended else [],
            "usage": self._usage() if has_ended else None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "background": False,
            "store": False,
            "previous_response_id": None,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
            "service_tier": "default",
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}} if text is None else text.as_reported(),
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "user": body.user,
            **fields,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning_tokens},
            "total_tokens": usage["total_tokens"],
            "speculation": usage["speculation"],
        }
