"""The format of gpt-oss (OpenAI's "harmony"): messages in the channels analysis, commentary and final.

A call is a message to ``functions.NAME``, and ends the answer, so there is one call at most. The analysis is the
reasoning, and commentary to nobody is content.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as ReadOnlySet

from specdec.apps.serving.parsed_answer import AnswerPiece, CallPiece, content_pieces
from specdec.apps.serving.tool_parsers.base import AnswerFormat, AnswerParser, AnswerRequest
from specdec.apps.serving.tool_parsers.call_parts import CallParts
from specdec.apps.serving.tool_parsers.call_syntax import openai_id
from specdec.apps.serving.tool_parsers.held_text import overlap
from specdec.apps.serving.tool_parsers.json_span import JsonSpan
from specdec.constraints.lark import literal, text_without

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = "<|end|>", "<|call|>", "<|return|>", _START
_MARKERS = _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS
_FUNCTIONS = "to=functions."
_LONGEST_HEADER = 256


def is_gpt_oss(template: str) -> bool:
    """Return True for templates with channels."""
    return _CHANNEL in template and _MESSAGE in template


class GptOssFormat(AnswerFormat):
    """Answers of gpt-oss; a prompt ends within the header of the assistant's next message."""

    name = "gpt_oss"

    @property
    def has_free_calls(self) -> bool:
        return True

    def markers(self, request: AnswerRequest) -> Sequence[str]:
        return _MARKERS

    def grammar(self, request: AnswerRequest, special: Mapping[str, int]) -> str:
        def message(channel: str, body: str) -> str:
            return f"{literal(_CHANNEL + channel + _MESSAGE, special)} {body}"

        following = literal(f"<|end|>{_START}assistant", special)
        content = "FREE?" if request.content is None else "@content"
        final = message("final", content)
        calls = literal(f"{_CHANNEL}commentary {_FUNCTIONS}", special) + " call"
        texts = [f"{function.name} {_CONSTRAIN}json{_MESSAGE}" for function in request.functions]
        call = " | ".join(f"{literal(text, special)} @arguments_{number}" for number, text in enumerate(texts))
        last = calls if request.requires_call else f"({final} | {calls})" if request.functions else final
        opened = _open_channel(request.prompt_end)
        start = "answer" if not opened else content if "final" in opened else f"FREE? {following} answer"
        rules = [
            "%llguidance {}",
            f"start: {start}",
            f"answer: {'(analysis | preamble)*' if request.functions else 'analysis*'} {last}",
            f"analysis: {message('analysis', 'FREE?')} {following}",
            f"preamble: {message('commentary', 'FREE?')} {following}",
            f"FREE: {text_without(_MARKERS)}",
        ]
        return "\n".join([*rules, f"call: {call}"] if request.functions else rules)

    def parser(self, request: AnswerRequest) -> AnswerParser:
        names = {function.name for function in request.functions}
        return _GptOssParser(names, _open_channel(request.prompt_end), request.has_stops)


def _open_channel(prompt_end: str) -> str:
    """Return the header of the message that a prompt has begun; "" if its header isn't complete."""
    header, found, body = prompt_end.rpartition(_START)[2].partition(_MESSAGE)
    return header if found and not any(end in body for end in _ENDS) else ""


class _GptOssParser(AnswerParser):
    def __init__(self, names: ReadOnlySet[str], header: str, holds_calls: bool) -> None:
        self._names, self._header, self._holds_calls = names, header, holds_calls
        self._is_in_body = bool(header)
        self._called = ""
        self._held = ""
        self._span = JsonSpan()
        self._parts = CallParts(holds_calls)

    def feed(self, text: str) -> list[AnswerPiece]:
        self._held += text
        pieces = list[AnswerPiece]()
        while (found := self._body() if self._is_in_body else self._next_header()) is not None:
            pieces += found
        return pieces

    def finish(self, is_stopped: bool) -> list[AnswerPiece]:
        held, self._held = self._held, ""
        if not self._is_in_body:
            # A header that a length cut says nothing; a stop may occur in the name of a call.
            return content_pieces(held) if is_stopped or not held.startswith("<") else []
        pieces = self._piece(held)
        if self.is_complete or not self._holds_calls:
            return pieces
        if not is_stopped:
            return self._parts.held
        self.num_calls, self.is_complete = self.num_calls - 1, True
        arguments = "".join(piece.call.arguments for piece in self._parts.held if piece.call is not None)
        return content_pieces(self._header + _MESSAGE + arguments)

    def _next_header(self) -> list[AnswerPiece] | None:
        header, found, body = self._held.partition(_MESSAGE)
        if len(header) > _LONGEST_HEADER:  # text without a header
            self._header, self._is_in_body = "final", True
            return []
        if not found:
            return None
        self._header, self._held, self._is_in_body = header, body, True
        name = header.partition(_FUNCTIONS)[2].partition("<")[0].strip()
        self._called = name if name in self._names else ""
        if not self._called:
            return []
        self._span, self.is_complete = JsonSpan(), False
        self.num_calls += 1
        return self._parts.add(CallPiece(self.num_calls - 1, openai_id(), name), is_complete=False)

    def _body(self) -> list[AnswerPiece] | None:
        found = [(at, end) for end in _ENDS if (at := self._held.find(end)) >= 0]
        if found:
            at, end = min(found)
            body, self._held = self._held[:at], self._held[at + len(end) :]
            pieces = self._piece(body)
            self._is_in_body, self._called = False, ""
            return pieces
        final = len(self._held) - max(overlap(self._held, end) for end in _ENDS)
        body, self._held = self._held[:final], self._held[final:]
        return self._piece(body) or None

    def _piece(self, body: str) -> list[AnswerPiece]:
        if not body:
            return []
        if self._called:
            self.is_complete = self.is_complete or self._span.feed(body) is not None
            return self._parts.add(CallPiece(self.num_calls - 1, arguments=body), self.is_complete)
        return [AnswerPiece(reasoning=body)] if "analysis" in self._header else content_pieces(body)
