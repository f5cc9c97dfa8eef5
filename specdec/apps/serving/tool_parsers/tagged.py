"""Answers whose reasoning is in tags, and whose calls have a fixed syntax."""

from collections.abc import Mapping, Sequence

from specdec.apps.serving.parsed_answer import AnswerPiece, content_pieces
from specdec.apps.serving.tool_parsers.base import AnswerFormat, AnswerParser, AnswerRequest
from specdec.apps.serving.tool_parsers.call_reader import CallReader
from specdec.apps.serving.tool_parsers.call_syntax import CallSyntax
from specdec.apps.serving.tool_parsers.reasoning import ReasoningReader, ReasoningStage, ReasoningTags
from specdec.constraints.lark import literal, text_without


class TaggedFormat(AnswerFormat):
    """A format of reasoning tags, content, and calls.

    Args:
        reasoning: None for a model that doesn't reason in tags.
    """

    def __init__(self, syntax: CallSyntax, reasoning: ReasoningTags | None) -> None:
        self.syntax, self.reasoning = syntax, reasoning

    @property
    def has_free_calls(self) -> bool:
        return bool(self.syntax.trigger)

    def markers(self, request: AnswerRequest) -> Sequence[str]:
        syntax, tags = self.syntax, self.reasoning
        texts = [] if tags is None else [tags.begin, tags.end]
        return (
            [*texts, syntax.prefix, syntax.first, syntax.after_name, syntax.next, syntax.last]
            if request.functions
            else texts
        )

    def grammar(self, request: AnswerRequest, special: Mapping[str, int]) -> str:
        stage = self._stage(request)
        rules = ["start: body"] if self.reasoning is None else self.reasoning.rules(stage, special)
        if not request.functions:
            return "\n".join(["%llguidance {}", *rules, "body: @content"])
        names = [function.name for function in request.functions]
        calls = self.syntax.rules(names, request.allows_several, special)
        return "\n".join(["%llguidance {}", *rules, *self._body(request, special, stage), *calls])

    def parser(self, request: AnswerRequest) -> AnswerParser:
        names = {function.name for function in request.functions}
        reasoning = None if self.reasoning is None else ReasoningReader(self.reasoning, self._stage(request))
        calls = CallReader(self.syntax, names, self._is_anchored(request), request.has_stops) if names else None
        return _TaggedParser(reasoning, calls)

    def _stage(self, request: AnswerRequest) -> ReasoningStage:
        return ReasoningStage.AFTER if self.reasoning is None else self.reasoning.stage(request)

    def _is_anchored(self, request: AnswerRequest) -> bool:
        return self.syntax.begins_text or request.requires_call or request.content is not None

    def _body(self, request: AnswerRequest, special: Mapping[str, int], stage: ReasoningStage) -> list[str]:
        """Return the rules of the answer after its reasoning, for a request with functions."""
        syntax = self.syntax
        prefix = f"{literal(syntax.prefix, special)}? " if syntax.prefix in special else ""
        anchored = f"{prefix}{literal(syntax.first, special)} calls"
        if request.requires_call:
            return [f"body: {anchored}"]
        if request.content is not None:
            return [f"body: {anchored} | @content"]
        if syntax.begins_text:
            first = syntax.trigger[0]
            return [f"body: {anchored} | FREE", rf"FREE: /(\s*[^\s{first}](.|\n)*)?/"]
        # Text can't spell a marker that is a single token: the parser would take it for the token.
        excluded = [syntax.trigger] if syntax.trigger in special else []
        if stage is ReasoningStage.BEFORE and self.reasoning is not None:
            excluded.append(self.reasoning.begin)
        trigger, rest = literal(syntax.trigger, special), literal(syntax.first.removeprefix(syntax.trigger), special)
        begun = [f"begun: FREE? {trigger}"] if syntax.trigger in special else [f"begun[lazy]: FREE {trigger}"]
        return [f"body: begun {rest} calls | FREE", *begun, f"FREE: {text_without(excluded)}"]


class _TaggedParser(AnswerParser):
    def __init__(self, reasoning: ReasoningReader | None, calls: CallReader | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    def feed(self, text: str) -> list[AnswerPiece]:
        pieces, text = ([], text) if self._reasoning is None else self._reasoning.feed(text)
        return pieces + self._after_reasoning(text)

    def finish(self, is_stopped: bool) -> list[AnswerPiece]:
        pieces, text = ([], "") if self._reasoning is None else self._reasoning.finish()
        pieces += self._after_reasoning(text)
        if self._calls is not None:
            pieces += self._calls.finish(is_stopped)
            self.num_calls, self.is_complete = self._calls.num_calls, self._calls.is_complete
        return pieces

    def _after_reasoning(self, text: str) -> list[AnswerPiece]:
        if self._calls is None:
            return content_pieces(text)
        pieces = self._calls.feed(text)
        self.num_calls, self.is_complete = self._calls.num_calls, self._calls.is_complete
        return pieces
