"""Free text in which JSON between tags is constrained."""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from specdec.constraints.base import Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.json_schema import JsonSchema
from specdec.constraints.lark import literal
from specdec.constraints.matcher import check_size, library_special_tokens
from specdec.errors import RequestError, in_one_line


class Tag(BaseModel):
    """JSON between two texts, such as the call of one tool: ``Tag(begin="<call>", content=schema, end="</call>")``.

    ``content`` is a JsonSchema, or what JsonSchema takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    begin: str = Field(min_length=1, description="the text before the JSON")
    content: JsonSchema = Field(description="the schema of the JSON")
    end: str = Field(default="", description="the text after the JSON")
    trigger: str = Field(default="", description="the start of begin after which the tag is enforced; all by default")

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise RequestError(f"Tag refused: {in_one_line(error)}") from None

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

    Tags with the same trigger are alternatives. A trigger that is one special token of the model is that token.
    """

    tags: tuple[Tag, ...] = Field(min_length=1, description="the tags")

    def __init__(self, tags: Any, **options: Any) -> None:
        super().__init__(tags=tags, **options)
        check_size("the tags", "".join(tag.begin + tag.content.definition + tag.end for tag in self.tags))

    def grammar(self, vocabulary: Vocabulary) -> str:
        special = library_special_tokens(vocabulary)  # they stand in the rules by their ids
        names = " | ".join(f"tag_{index}" for index in range(len(self.tags)))
        rules = [f"start: ({names})* rest", "rest: TEXT", r"TEXT: /(.|\n)*/"]
        for index, tag in enumerate(self.tags):
            trigger = tag.trigger or tag.begin
            begun = f"TEXT <[{special[trigger]}]>" if trigger in special else f"begun_{index}"
            if trigger not in special:
                rules.append(f"begun_{index}[lazy]: TEXT {literal(trigger, special)}")
            schema = json.loads(tag.content.grammar(vocabulary))["grammars"][0]["json_schema"]  # with its options
            before, after = literal(tag.begin[len(trigger) :], special), literal(tag.end, special)
            inner = f"{before} %json {json.dumps(schema)} {after}"
            rules.append(f"tag_{index}: {begun} {inner}")
        return "\n".join(["%llguidance {}", *rules])
