"""Free text in which JSON between tags is constrained."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.json_schema import JsonSchema
from specdec.constraints.matcher import check_size, library, start


class Tag(BaseModel):
    """JSON between two texts, such as the call of one tool: ``Tag(begin="<call>", content=schema, end="</call>")``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    begin: str = Field(min_length=1, description="the text before the JSON")
    content: JsonSchema = Field(description="the schema of the JSON")
    end: str = Field(default="", description="the text after the JSON")
    trigger: str = Field(default="", description="the start of begin after which the tag is enforced; all by default")


class StructuralTags(Constraint):
    """Free text up to the trigger of a tag; then the rest of the tag, its JSON, its end, and free text again.

    Tags with the same trigger are alternatives. A trigger that is one special token of the model is that token.
    """

    tags: tuple[Tag, ...] = Field(min_length=1, description="the tags")

    def __init__(self, tags: Any, **options: Any) -> None:
        super().__init__(tags=tuple(tags), **options)
        check_size("the schemas of the tags", "".join(tag.content.definition for tag in self.tags))

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        make, special = library().StructTag, set(getattr(vocabulary.tokenizer, "all_special_tokens", ()))
        triggers = [tag.trigger or tag.begin for tag in self.tags]
        parts = [
            make(trigger=trigger, begin=tag.begin, grammar=_with_options(tag.content), end=tag.end)
            for trigger, tag in zip(triggers, self.tags, strict=True)
        ]
        lark = make.to_grammar(parts, assume_special=special.issuperset(triggers))
        return start(library().LLMatcher.grammar_from_lark(lark), vocabulary)


def _with_options(schema: JsonSchema) -> Any:
    """The schema as the library compiles it, with its options within."""
    return json.loads(schema.grammar())["grammars"][0]["json_schema"]
