"""Reasoning parts of answers: text in tags before the content."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from specdec.apps.serving.parsed_answer import AnswerPiece
from specdec.apps.serving.tool_parsers.base import AnswerRequest
from specdec.apps.serving.tool_parsers.held_text import num_final
from specdec.constraints.lark import literal, text_without


class ReasoningStage(Enum):
    """The part of an answer in which it starts: before, inside or after its reasoning."""

    BEFORE = "reasoning may follow"
    WITHIN = "the prompt has opened the reasoning"
    AFTER = "no reasoning follows"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around a model's reasoning."""

    begin: str
    end: str

    def stage(self, request: AnswerRequest) -> ReasoningStage:
        """Return where a request's answer begins."""
        before, begun = request.prompt_end.rstrip(), (request.begun or "").strip()
        before = before.removesuffix(begun).rstrip()
        # Tags in earlier messages don't count, nor do those that a text mentions.
        has_begun = begun.startswith(self.begin) or before.endswith(self.begin)
        if has_begun and self.end not in begun:
            return ReasoningStage.WITHIN
        return ReasoningStage.AFTER if request.begun is not None or before.endswith(self.end) else ReasoningStage.BEFORE

    def rules(self, stage: ReasoningStage, special: Mapping[str, int]) -> list[str]:
        """Return the rules of ``start``: the reasoning, and then ``body``."""
        if stage is ReasoningStage.AFTER:
            return ["start: body"]
        begins = "thought body" if stage is ReasoningStage.WITHIN else f"({literal(self.begin, special)} thought)? body"
        end = literal(self.end, special)
        if self.end in special:
            thought = ["thought: REASONING? " + end + " SPACE?", f"REASONING: {text_without([self.end])}"]
        else:
            thought = ["thought: thinking SPACE?", f"thinking[lazy]: REASONING {end}", f"REASONING: {text_without(())}"]
        return [f"start: {begins}", *thought, r"SPACE: /[ \n]{1,4}/"]


_KNOWN = ReasoningTags("<think>", "</think>"), ReasoningTags("[THINK]", "[/THINK]")


def reasoning_tags(template: str, added_tokens: Sequence[str]) -> ReasoningTags | None:
    """Return the tags that a model reasons in, by its chat template and the tokens added to its vocabulary."""
    return next((tags for tags in _KNOWN if tags.end in template or tags.end in added_tokens), None)


class ReasoningReader:
    """Reads an answer up to the end of its reasoning."""

    def __init__(self, tags: ReasoningTags, stage: ReasoningStage) -> None:
        self._tags, self._stage = tags, stage
        self._held = ""
        self._is_empty = True  # no reasoning yet, so that whitespace is dropped
        self._drops_space = False  # before the content

    def feed(self, text: str) -> tuple[list[AnswerPiece], str]:
        """Return the pieces of reasoning that more text completes, and the text after the reasoning."""
        self._held += text
        pieces = []
        if self._stage is ReasoningStage.BEFORE:
            self._begin()
        if self._stage is ReasoningStage.WITHIN:
            pieces = self._reason()
        if self._stage is not ReasoningStage.AFTER:
            return pieces, ""
        rest, self._held = self._held, ""
        if self._drops_space:
            rest = rest.lstrip()
            self._drops_space = not rest
        return pieces, rest

    def finish(self) -> tuple[list[AnswerPiece], str]:
        """Return what was held back; called after the last text."""
        held, self._held = self._held, ""
        if self._stage is ReasoningStage.WITHIN:
            return ([AnswerPiece(reasoning=held.rstrip())] if held.strip() else []), ""
        return [], held

    def _begin(self) -> None:
        begin, text = self._tags.begin, self._held.lstrip()
        if text.startswith(begin):
            self._held, self._stage = text[len(begin) :], ReasoningStage.WITHIN
        elif not begin.startswith(text):
            self._stage = ReasoningStage.AFTER

    def _reason(self) -> list[AnswerPiece]:
        if self._is_empty:
            self._held = self._held.lstrip()
        before, end, after = self._held.partition(self._tags.end)
        if end:
            self._held, self._stage, self._drops_space = after, ReasoningStage.AFTER, True
            thought = before.rstrip()
        else:
            final = num_final(self._held, self._tags.end)
            thought, self._held = self._held[:final], self._held[final:]
        if not thought:
            return []
        self._is_empty = False
        return [AnswerPiece(reasoning=thought)]
