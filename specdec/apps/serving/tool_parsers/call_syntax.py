"""A syntax of tool calls in which each call is JSON between fixed texts."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specdec.constraints.lark import literal


def openai_id() -> str:
    """Return a new call's id in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The syntax of a model's calls: ``opening (before_name NAME after_name ARGUMENTS after_arguments)… closing``.

    Attributes:
        name: by which ``--tool-parser`` selects the syntax.
        fits: returns True for the chat template of a model that writes it.
        opening, closing: before the first call, and after the last one.
        separator: between two calls.
        trigger: the start of a call, after which free text can't go on; "" if free text has no calls.
        begins_text: True if calls are at the start of an answer, and never after content.
        prefix: an optional text before the first call.
        make_id: returns a new call's id.
    """

    name: str
    fits: Callable[[str], bool]
    before_name: str
    after_name: str
    after_arguments: str
    opening: str = ""
    closing: str = ""
    separator: str = ""
    trigger: str = ""
    begins_text: bool = False
    prefix: str = ""
    make_id: Callable[[], str] = openai_id

    @property
    def first(self) -> str:
        """The text before the name of the first call."""
        return self.opening + self.before_name

    @property
    def next(self) -> str:
        """The text between the arguments of a call and the name of the next one."""
        return self.after_arguments + self.separator + self.before_name

    @property
    def last(self) -> str:
        """The text after the last call's arguments."""
        return self.after_arguments + self.closing

    def rules(self, names: Sequence[str], allows_several: bool, special: Mapping[str, int]) -> list[str]:
        """Return the rules of ``calls``, the text after ``first``; the arguments of function N are ``@arguments_N``."""
        more = f"({literal(self.next, special)} call)*" if allows_several else ""
        call = " | ".join(f"{literal(name + self.after_name, special)} @arguments_{n}" for n, name in enumerate(names))
        return [f"calls: call {more} {literal(self.last, special)}", f"call: {call}"]
