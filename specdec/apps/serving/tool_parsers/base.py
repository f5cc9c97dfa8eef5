"""The contract of answer formats: how a model writes reasoning, content and tool calls.

A format has two sides that agree: a grammar, which constrains the text, and a parser, which reads it. Where a request
has tools, the text is constrained from the first character of a call on, so that each call has the name of one of the
tools, and arguments that are valid under its schema.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec.apps.serving.parsed_answer import AnswerPiece
from specdec.constraints.grammar_constraint import GrammarConstraint


@dataclass(frozen=True, slots=True)
class Function:
    """A function that an answer may call; ``arguments`` constrains the JSON text of its arguments."""

    name: str
    arguments: GrammarConstraint


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A request's requirements of an answer.

    Attributes:
        prompt_end: the end of the prompt's text, special tokens included; all of it if the answer continues a message.
        begun: the message that the answer continues, which ends the prompt; None if the answer begins a message.
        content: the constraint on the content; None for any text.
        functions: the functions that may be called; empty if none may.
        requires_call: True if the answer must be one or more calls.
        allows_several: True if the answer may have more than one call.
        has_stops: True if a stop string or token may end the text anywhere.
    """

    prompt_end: str = ""
    begun: str | None = None
    content: GrammarConstraint | None = None
    functions: Sequence[Function] = ()
    requires_call: bool = False
    allows_several: bool = True
    has_stops: bool = False

    @property
    def is_free(self) -> bool:
        """True if any text may be written."""
        return self.content is None and not self.functions


class AnswerParser(ABC):
    """Reads one answer. The pieces of a text are the same however it is divided, except for where they are cut.

    A call that a stop string or token ends before its arguments are whole is content. So where these may occur, a call
    is returned once its arguments are whole.

    Attributes:
        num_calls: calls so far.
        is_complete: False within a call; after ``finish``, False if the last call's arguments were cut.
    """

    num_calls: int = 0
    is_complete: bool = True

    @abstractmethod
    def feed(self, text: str) -> list[AnswerPiece]:
        """Return the pieces that more text completes."""

    @abstractmethod
    def finish(self, is_stopped: bool) -> list[AnswerPiece]:
        """Return the pieces that were held back; called after the last text.

        Args:
            is_stopped: True if the text ended by itself or by a stop, and wasn't cut at a length.
        """


class AnswerFormat(ABC):
    """The format of a model's answers; each subclass reads and constrains one format."""

    @property
    @abstractmethod
    def has_free_calls(self) -> bool:
        """True if calls may follow free text; False for a format that has calls only where they are required."""

    @abstractmethod
    def markers(self, request: AnswerRequest) -> Sequence[str]:
        """Return the texts that divide a request's answers; special tokens among them must be in the text."""

    @abstractmethod
    def grammar(self, request: AnswerRequest, special: Mapping[str, int]) -> str:
        """Return the rules of a request's answers in Lark; its content is ``@content``, arguments are ``@arguments_N``.

        Args:
            request: one that isn't free.
            special: the ids of the tokens that no text in a grammar matches, by text.
        """

    @abstractmethod
    def parser(self, request: AnswerRequest) -> AnswerParser:
        """Return a parser of one answer to a request."""
