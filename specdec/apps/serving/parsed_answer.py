"""A parsed answer, and the pieces in which a parser of ``tool_parsers`` returns it."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ToolCall:
    """A call of a function; ``arguments`` is JSON text, incomplete if the answer was cut there."""

    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a tool call.

    Attributes:
        index: the call's index in the answer.
        id, name: set in the first piece of a call, which has no arguments.
        arguments: the next part of the arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of an answer; only one of its fields is set."""

    content: str = ""
    reasoning: str = ""
    call: CallPiece | None = None


@dataclass(slots=True)
class ParsedAnswer:
    """An answer, as far as its pieces have arrived."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, pieces: Iterable[AnswerPiece]) -> None:
        """Add pieces in their order."""
        for piece in pieces:
            self.content += piece.content
            self.reasoning += piece.reasoning
            call = piece.call
            if call is None:
                continue
            if call.id is not None and call.name is not None:
                self.tool_calls.append(ToolCall(call.id, call.name))
            self.tool_calls[call.index].arguments += call.arguments


def content_pieces(text: str) -> list[AnswerPiece]:
    """Return a text as content; no piece for an empty text."""
    return [AnswerPiece(content=text)] if text else []
