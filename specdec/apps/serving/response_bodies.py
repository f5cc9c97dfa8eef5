"""Response bodies in the format of OpenAI's API reference: what all have in common, completions, and chat."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.jobs import JobProgress
from specdec.apps.serving.logprobs import TokenLogprob
from specdec.apps.serving.parsed_answer import AnswerPiece, CallPiece, ParsedAnswer
from specdec.apps.serving.requests import Call
from specdec.apps.serving.usage import Figures

_FINISHED = {"stop": "stop", "length": "length", "time": "length", "cancelled": "length"}


class ResponseBuilder(ABC):
    """Builds the response of one call; ``name`` is the model's.

    If it ``keeps_texts``, the whole answer is available at the end.
    """

    prefix: ClassVar[str]  # of ids
    names_events: ClassVar[bool] = False  # the events of a stream have names

    def __init__(self, call: Call, name: str, fingerprint: str, keeps_texts: bool) -> None:
        self._call, self._keeps_texts = call, keeps_texts
        self._head = {
            "id": f"{self.prefix}{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": fingerprint,
        }
        self.texts = [""] * len(call.prompts)  # so far
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in call.prompts]
        self._finish: list[str | None] = [None] * len(call.prompts)
        self._figures: dict[int, Figures] = {}  # of the texts that have ended
        self.notes = dict[str, None]()  # of these texts, in order
        self._num_tokens = 0
        self._parsers = [call.plan.parser() for _ in call.prompts]
        self._answers = [ParsedAnswer() for _ in call.prompts]

    def note(self, progress: JobProgress) -> list[AnswerPiece]:
        """Add a step's progress; return the pieces of the answer that it completes."""
        parser = self._parsers[progress.index]
        pieces = parser.feed(progress.text)
        if progress.result is not None:
            pieces += parser.finish(is_stopped=progress.result.finish_reason == "stop")
        if self._keeps_texts:
            self.texts[progress.index] += progress.text
            self._logprobs[progress.index] += progress.logprobs
            self._answers[progress.index].add(pieces)
        self._num_tokens += len(progress.token_ids)
        if progress.result is not None:
            self._finish[progress.index] = progress.result.finish_reason
            self.notes |= dict.fromkeys(progress.result.notes)
        if progress.figures is not None:
            self._figures[progress.index] = progress.figures
        return pieces

    def usage(self) -> dict[str, Any]:
        """Return the numbers of tokens, and the figures of speculation."""
        figures, every = Figures.of(self._figures.values()), self._call.num_samples
        num_prompt = self._call.num_prompt_tokens
        num_copied = sum(each.num_copied for index, each in self._figures.items() if index % every == 0)
        details = {} if self._call.reference is None else {"completion_tokens_details": figures.of_prediction()}
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_tokens,
            "total_tokens": num_prompt + self._num_tokens,
            "prompt_tokens_details": {"cached_tokens": num_copied},
            **details,
            "speculation": {
                "strategy": self._call.strategy,
                **figures.as_dict(),
                "seed": self._call.seeds[0],
                "ended_by": [*self._finish],
            },
        }

    def finish_reason(self, index: int) -> str:
        """Return why a text has ended."""
        parser, reason = self._parsers[index], _FINISHED[self._finish[index] or "length"]
        if not parser.is_complete:
            return "length"
        return "tool_calls" if reason == "stop" and parser.num_calls else reason

    @abstractmethod
    def answer(self) -> dict[str, Any]:
        """Return the whole answer."""

    def beginning(self) -> list[dict[str, Any]]:
        """Return the events of a streamed answer before the first text."""
        return []

    @abstractmethod
    def chunks(self, progress: JobProgress, pieces: Sequence[AnswerPiece]) -> list[dict[str, Any]]:
        """Return a step's events of a streamed answer; called after ``note``, which has returned the pieces."""

    def end(self) -> dict[str, Any]:
        """Return the event with the usage, if it is requested."""
        return {"usage": self.usage()}

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        """Return the last events of a streamed answer that fails."""
        return [error.body]


class ChoicesResponse(ResponseBuilder):
    """Responses with a choice for each text."""

    whole: ClassVar[str]  # the "object" field of an answer
    part: ClassVar[str]  # … and of a part of a streamed one

    def answer(self) -> dict[str, Any]:
        choices = [
            {"index": index, **self._whole_choice(answer, logprobs), "finish_reason": self.finish_reason(index)}
            for index, (answer, logprobs) in enumerate(zip(self._answers, self._logprobs, strict=True))
        ]
        return {**self._head, "object": self.whole, "choices": choices, "usage": self.usage()}

    def chunks(self, progress: JobProgress, pieces: Sequence[AnswerPiece]) -> list[dict[str, Any]]:
        parts = []  # one for each piece, and one at least
        for number, piece in enumerate(pieces or [AnswerPiece()]):
            is_last = progress.result is not None and number >= len(pieces) - 1
            reason = self.finish_reason(progress.index) if is_last else None
            own = self._part(piece, progress.logprobs if number == 0 else ())
            part = self._chunk([{"index": progress.index, **own, "finish_reason": reason}])
            parts.append(part if number or progress.step is None else part | {"step": asdict(progress.step)})
        return parts

    def end(self) -> dict[str, Any]:
        return self._chunk([]) | {"usage": self.usage()}

    def _chunk(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.part, "choices": choices}

    @abstractmethod
    def _whole_choice(self, answer: ParsedAnswer, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return a choice, without its index and finish reason."""

    @abstractmethod
    def _part(self, piece: AnswerPiece, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return a choice of a part, without its index and finish reason."""


class ChatResponse(ChoicesResponse):
    """Responses of /v1/chat/completions."""

    prefix, whole, part = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def beginning(self) -> list[dict[str, Any]]:
        return [
            self._chunk([{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
            for index in range(len(self.texts))
        ]

    def _whole_choice(self, answer: ParsedAnswer, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        has_other = bool(answer.tool_calls or answer.reasoning)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if has_other and not answer.content else answer.content,
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.tool_calls
            ]
        return {"message": message, "logprobs": self._logprobs_entry(logprobs)}

    def _part(self, piece: AnswerPiece, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if piece.content:
            delta["content"] = piece.content
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.call is not None:
            delta["tool_calls"] = [_call_delta(piece.call)]
        return {"delta": delta, "logprobs": self._logprobs_entry(logprobs)}

    def _logprobs_entry(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._call.num_logprobs is None:
            return None
        return {"content": [*map(logprob_entry, logprobs)], "refusal": None}


class CompletionResponse(ChoicesResponse):
    """Responses of /v1/completions."""

    prefix, whole, part = "cmpl-", "text_completion", "text_completion"

    def _whole_choice(self, answer: ParsedAnswer, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"text": answer.content, "logprobs": self._logprobs_entry(logprobs)}

    def _part(self, piece: AnswerPiece, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"text": piece.content, "logprobs": self._logprobs_entry(logprobs)}

    def _logprobs_entry(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._call.num_logprobs is None:
            return None
        return {
            "tokens": [each.text for each in logprobs],
            "token_logprobs": [_finite(each.logprob) for each in logprobs],
            "top_logprobs": [None if each.logprob is None else _by_text(each) for each in logprobs],
            "text_offset": [each.offset for each in logprobs],
        }


def _call_delta(call: CallPiece) -> dict[str, Any]:
    """Return a piece of a tool call: first its id and name, and then parts of the arguments."""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def logprob_entry(found: TokenLogprob) -> dict[str, Any]:
    """Return a token and its top tokens as chat completions report them."""
    return _entry(found) | {"top_logprobs": [*map(_entry, found.top)]}


def _entry(found: TokenLogprob) -> dict[str, Any]:
    coded = None if found.coded is None else [*found.coded]
    return {"token": found.text, "logprob": _finite(found.logprob), "bytes": coded}


def _by_text(emitted: TokenLogprob) -> dict[str, float | None]:
    """Return the top tokens and the emitted one by text; if another token has the same text, by id."""
    found: dict[str, float | None] = {}
    others = () if emitted.token in {other.token for other in emitted.top} else (emitted,)
    for other in (*emitted.top, *others):
        name = f"token_id:{other.token}" if other.text in found else other.text
        found[name] = _finite(other.logprob)
    return found


def _finite(logprob: float | None) -> float | None:
    """Return a log-probability as a finite number for JSON; like OpenAI, -9999 for minus infinity."""
    if logprob is None:
        return None
    return logprob if logprob > -9999.0 else -9999.0  # also for NaN
