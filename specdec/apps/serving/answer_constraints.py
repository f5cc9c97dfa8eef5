"""The constraint on a request's answers: by their format, tools and structured outputs together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from specdec.apps.serving.schemas import ChatBody, Sampling
from specdec.apps.serving.structured_outputs import content_constraint, refusal
from specdec.apps.serving.tool_parsers.base import AnswerFormat, AnswerParser, AnswerRequest
from specdec.apps.serving.tool_parsers.known_syntaxes import JSON_CALLS
from specdec.apps.serving.tool_parsers.selection import answer_format
from specdec.apps.serving.tool_parsers.tagged import TaggedFormat
from specdec.apps.serving.tools import tool_choice
from specdec.constraints.base import Vocabulary
from specdec.constraints.grammar import Grammar
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import library_special_tokens
from specdec.errors import RequestError
from specdec.requests.special_tokens import special_tokens

_FREE = AnswerRequest()
_UNDIVIDED = TaggedFormat(JSON_CALLS, reasoning=None)  # without tools, the whole text is content
_NUM_END_TOKENS = 256  # at the end of a prompt, where a template may open the reasoning


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The constraint and the format of the answers to a request.

    Attributes:
        constraint: on the whole text; None for any text.
        parts: its parts, by the fields of the request that define them.
        format: how the text is divided.
        request: what the format is asked for.
        shows_special: True if special tokens must be in the text, where they divide it.
        hidden_token_ids: the special tokens that the text omits even so, as they don't divide it.
    """

    constraint: GrammarConstraint | None = None
    parts: Sequence[tuple[str, GrammarConstraint]] = ()
    format: AnswerFormat = _UNDIVIDED
    request: AnswerRequest = _FREE
    shows_special: bool = False
    hidden_token_ids: Sequence[int] = ()

    def parser(self) -> AnswerParser:
        """Return a parser of one answer."""
        return self.format.parser(self.request)


@dataclass(frozen=True, slots=True)
class RequestedAnswer:
    """The fields in a request's body that constrain its answers.

    Attributes:
        request: without the end of the prompt.
        parts: the constraints in it, by the fields of the body that define them.
    """

    request: AnswerRequest
    parts: Sequence[tuple[str, GrammarConstraint]]

    @classmethod
    def of_chat(cls, body: ChatBody) -> Self:
        """Return what a chat request asks of its answers.

        Raises:
            ApiError: for tools or a constraint that are invalid or can't be enforced.
        """
        content, param = content_constraint(body)
        choice = tool_choice(body.tools or (), body.tool_choice, body.has_strict_tools)
        is_single = body.parallel_tool_calls is False or choice.is_named
        request = AnswerRequest(
            content=content,
            functions=choice.functions,
            requires_call=choice.is_required,
            allows_several=not is_single,
            has_stops=bool(body.stop or body.stop_token_ids),
        )
        arguments = [(param, each.arguments) for param, each in zip(choice.params, choice.functions, strict=True)]
        return cls(request, arguments if content is None else [(param, content), *arguments])


class AnswerPlanner:
    """Plans the answers of a model.

    Args:
        tokenizer: used by no other thread.
        vocabulary: the one that constraints are compiled for.
        tool_parser: the name of the answers' format; None for the one of the chat template.

    Raises:
        RequestError: for an unknown name.
    """

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary, tool_parser: str | None) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._format = answer_format(tokenizer, tool_parser)
        self._special = special_tokens(tokenizer)

    def completion(self, body: Sampling) -> AnswerPlan:
        """Return the plan of a completion.

        Raises:
            ApiError: for a constraint that can't be enforced.
        """
        constraint, param = content_constraint(body)
        return AnswerPlan() if constraint is None else AnswerPlan(constraint, [(param, constraint)])

    def chat(
        self, wanted: RequestedAnswer, prompt: Sequence[int], begun: str | None, shows_special: bool
    ) -> AnswerPlan:
        """Return the plan of a chat answer.

        Args:
            prompt: the token ids of the conversation.
            begun: the last message, if the answer continues it.
            shows_special: True if special tokens are wanted as part of the answer.

        Raises:
            ApiError: for a constraint that can't be enforced.
        """
        # A message that is continued may be of any length.
        end = prompt[-_NUM_END_TOKENS:] if begun is None else prompt
        request = replace(wanted.request, prompt_end=str(self._tokenizer.decode([*end])), begun=begun)
        if not (request.requires_call or self._format.has_free_calls):
            request = replace(request, functions=())
        return self._plan(request, wanted.parts, shows_special)

    def _plan(
        self, request: AnswerRequest, parts: Sequence[tuple[str, GrammarConstraint]], shows_special: bool
    ) -> AnswerPlan:
        markers = "".join(self._format.markers(request))
        needs_special = any(text in markers for text in self._special)
        hidden = [token for text, token in self._special.items() if text not in markers]
        return AnswerPlan(
            constraint=None if request.is_free else self._constraint(request, parts),
            parts=parts,
            format=self._format,
            request=request,
            shows_special=needs_special or shows_special,
            hidden_token_ids=hidden if needs_special and not shows_special else (),
        )

    def _constraint(self, request: AnswerRequest, parts: Sequence[tuple[str, GrammarConstraint]]) -> GrammarConstraint:
        arguments = {f"arguments_{number}": each.arguments for number, each in enumerate(request.functions)}
        content = request.content
        try:
            rules = self._format.grammar(request, library_special_tokens(self._vocabulary))
            has_content = content is not None and not request.requires_call
            return Grammar(rules, parts={**arguments, "content": content} if has_content else arguments)
        except RequestError as error:
            raise refusal(error, parts[0][0]) from None
