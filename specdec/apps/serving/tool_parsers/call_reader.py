"""Reads the content and the tool calls of an answer, which arrives in parts."""

from collections.abc import Callable, Collection

from specdec.apps.serving.parsed_answer import AnswerPiece, CallPiece, content_pieces
from specdec.apps.serving.tool_parsers.call_parts import CallParts
from specdec.apps.serving.tool_parsers.call_syntax import CallSyntax
from specdec.apps.serving.tool_parsers.held_text import num_final
from specdec.apps.serving.tool_parsers.json_span import JsonSpan


class CallReader:
    """Reads an answer after its reasoning.

    Whitespace between the content and a call is dropped. Text that turns out to be no call, since it has another form
    or another name, is content.

    Args:
        names: the functions that may be called.
        is_anchored: True if calls are at the start of the answer, and never after content.
        holds_calls: True if a call is returned only once its arguments are whole.

    Attributes:
        num_calls: calls so far.
        is_complete: False within a call.
    """

    def __init__(self, syntax: CallSyntax, names: Collection[str], is_anchored: bool, holds_calls: bool) -> None:
        self._syntax, self._names, self._holds_calls = syntax, names, holds_calls
        self._trigger = syntax.trigger or syntax.first[:1]
        self._read: Callable[[], list[AnswerPiece] | None] = self._start if is_anchored else self._content
        self._held = ""  # text that isn't read yet
        self._begun = ""  # the text of a call whose arguments aren't whole, as far as it is read
        self._parts = CallParts(holds_calls)
        self._called = ""  # the function's name
        self._span = JsonSpan()
        self.num_calls, self.is_complete = 0, True

    def feed(self, text: str) -> list[AnswerPiece]:
        """Return the pieces that more text completes."""
        self._held += text
        pieces = list[AnswerPiece]()
        while self._held and (found := self._read()) is not None:
            pieces += found
        return pieces

    def finish(self, is_stopped: bool) -> list[AnswerPiece]:
        """Return what was held back; called after the last text.

        A call that is cut at a length has the part of its arguments, and is dropped if it was cut before these.
        """
        rest, self._held = self._held, ""
        if self._read in (self._start, self._content):
            return content_pieces(rest)
        if not is_stopped or (self._read == self._arguments and not self._holds_calls):
            return self._parts.held
        if self._read in (self._after_arguments, self._rest):
            return []
        if self._read == self._between and self._syntax.closing.startswith(rest):
            return []
        if self._read == self._arguments:
            self.num_calls, self.is_complete = self.num_calls - 1, True
        return content_pieces(self._begun + rest)

    # Each state reads from the held text, and sets the next state. None means that more text is needed.

    def _start(self) -> list[AnswerPiece] | None:
        text, prefix = self._held.lstrip(), self._syntax.prefix
        if prefix and text.startswith(prefix):
            text = text[len(prefix) :].lstrip()
        elif prefix.startswith(text) and prefix:
            return None
        if text.startswith(self._trigger):
            self._begun = self._held.removesuffix(text)
            self._held, self._read = text, self._first
            return []
        if self._trigger.startswith(text):
            return None
        self._read = self._rest
        return []

    def _content(self) -> list[AnswerPiece] | None:
        before, trigger, after = self._held.partition(self._trigger)
        if trigger:
            content = before.rstrip()
            self._begun = before[len(content) :]
            self._held, self._read = trigger + after, self._first
            return content_pieces(content)
        final = num_final(self._held, self._trigger)
        content, self._held = self._held[:final], self._held[final:]
        return content_pieces(content) or None

    def _first(self) -> list[AnswerPiece] | None:
        return self._expect(self._syntax.first, self._name)

    def _name(self) -> list[AnswerPiece] | None:
        name, found, after = self._held.partition(self._syntax.after_name)
        if not found:
            longest = max(map(len, self._names), default=0) + len(self._syntax.after_name)
            return None if len(self._held) <= longest else self._fail()
        if name not in self._names:
            return self._fail()
        self._called, self._begun, self._held = name, self._begun + name + found, after
        self._read = self._arguments_start
        return []

    def _arguments_start(self) -> list[AnswerPiece] | None:
        text = self._held.lstrip()
        if not text:
            return None
        if not text.startswith("{"):
            return self._fail()
        self._begun += self._held.removesuffix(text)
        self._held, self._read = text, self._arguments
        self._span, self.is_complete = JsonSpan(), False
        self.num_calls += 1
        return self._parts.add(CallPiece(self.num_calls - 1, self._syntax.make_id(), self._called), is_complete=False)

    def _arguments(self) -> list[AnswerPiece]:
        end = self._span.feed(self._held)
        arguments, self._held = self._held[:end], "" if end is None else self._held[end:]
        self._begun += arguments
        if end is not None:
            self._begun, self._read, self.is_complete = "", self._after_arguments, True
        return self._parts.add(CallPiece(self.num_calls - 1, arguments=arguments), self.is_complete)

    def _after_arguments(self) -> list[AnswerPiece] | None:
        return self._expect(self._syntax.after_arguments, self._between)

    def _between(self) -> list[AnswerPiece] | None:
        following = self._syntax.separator + self._syntax.before_name
        if self._held.startswith(following) or following.startswith(self._held):
            return self._expect(following, self._name)
        return self._expect(self._syntax.closing, self._rest)

    def _rest(self) -> list[AnswerPiece] | None:
        if self.num_calls and not self._held.strip():
            return None
        content, self._held = self._held, ""
        return content_pieces(content)

    def _expect(self, text: str, then: Callable[[], list[AnswerPiece] | None]) -> list[AnswerPiece] | None:
        """Read a fixed text, or fail."""
        if self._held.startswith(text):
            self._begun = self._begun + text if then == self._name else ""
            self._held, self._read = self._held[len(text) :], then
            return []
        return None if text.startswith(self._held) else self._fail()

    def _fail(self) -> list[AnswerPiece]:
        """Read the text of what isn't a call as content."""
        self._held, self._begun, self._read = self._begun + self._held, "", self._rest
        return []
