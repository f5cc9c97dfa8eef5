"""Free text in which JSON between tags is constrained."""

import json
from collections.abc import Iterable
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from specdec.configuration import Configuration
from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.json_schema import JsonSchema
from specdec.constraints.lark import literal
from specdec.constraints.matcher import GrammarError, check_size, library_special_tokens
from specdec.constraints.refusals import refused_part
from specdec.errors import RequestError


class Tag(Configuration):
    """JSON between two texts, such as the call of one tool: ``Tag(begin="<call>", content=schema, end="</call>")``.

    ``content`` is a JsonSchema, or what JsonSchema takes.
    """

    error_class = RequestError

    begin: str = Field(min_length=1, description="the text before the JSON")
    content: JsonSchema = Field(description="the schema of the JSON")
    end: str = Field(default="", description="the text after the JSON")
    trigger: str = Field(default="", description="the start of begin after which the tag is enforced; all by default")

    def __init__(self, **options: Any) -> None:  # type checkers would make one that takes a JsonSchema only
        super().__init__(**options)

    @field_validator("content", mode="before")
    @classmethod
    def _schema(cls, content: Any) -> JsonSchema:
        return content if isinstance(content, JsonSchema) else JsonSchema(content)

    @model_validator(mode="after")
    def _begins_with_trigger(self) -> Self:
        if not self.begin.startswith(self.trigger):
            raise ValueError(f"begin={self.begin!r} doesn't start with trigger={self.trigger!r}")
        return self


class StructuralTags(GrammarConstraint):
    """Free text up to the trigger of a tag; then the rest of the tag, its JSON, its end, and free text again.

    Tags with the same trigger are alternatives. The model's special tokens are these tokens in a tag's texts, such as
    the end ``<|im_end|>``, and stand nowhere in free text.
    """

    tags: tuple[Tag, ...] = Field(min_length=1, description="the tags")

    def __init__(self, tags: Any, **options: Any) -> None:
        super().__init__(tags=tags, **options)
        check_size("the tags", "".join(tag.begin + tag.content.definition + tag.end for tag in self.tags))

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        try:
            return super().start(vocabulary, seconds)
        except GrammarError:
            found = refused_part([("", tag.content) for tag in self.tags], vocabulary)
            if found is not None:
                raise found[1] from None  # with the place in the schema
            raise

    def grammar(self, vocabulary: Vocabulary) -> str:
        special = library_special_tokens(vocabulary)  # they stand in the rules by their ids
        names = " | ".join(f"tag_{index}" for index in range(len(self.tags)))
        rules = [f"start: ({names})* rest", "rest: TEXT", r"TEXT: /(.|\n)*/"]
        for index, tag in enumerate(self.tags):
            text, token = _trigger_of(tag, special)
            begun = f"TEXT <[{special[token]}]>" if token else f"begun_{index}"
            if not token:
                rules.append(f"begun_{index}[lazy]: TEXT {literal(text, special)}")
            schema = json.loads(tag.content.grammar(vocabulary))["grammars"][0]["json_schema"]  # with its options
            before, after = literal(tag.begin[len(token or text) :], special), literal(tag.end, special)
            inner = f"{before} %json {json.dumps(schema)} {after}"
            rules.append(f"tag_{index}: {begun} {inner}")
        return "\n".join(["%llguidance {}", *rules])


def _trigger_of(tag: Tag, special: Iterable[str]) -> tuple[str, str]:
    """The text that triggers a tag, and the special token at its start, which is enough: free text has none."""
    text = tag.trigger or tag.begin
    found = [token for token in special if token and token in text]
    token = max((token for token in found if text.startswith(token)), key=len, default="")
    if found and not token:
        raise RequestError(
            f"the trigger {text!r} has the special token {found[0]!r} after text: end the trigger before"
        )
    return text, token
