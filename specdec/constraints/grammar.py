"""Text of a context-free grammar."""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator

from specdec.constraints.base import Vocabulary
from specdec.constraints.formats import with_exact_formats
from specdec.constraints.grammar_constraint import GrammarConstraint, named
from specdec.constraints.json_schema import ALLOWED_ESCAPES
from specdec.constraints.matcher import check_size, library
from specdec.constraints.schema_check import as_decimal, check_schema, too_deep
from specdec.errors import RequestError, in_one_line

_JSON = re.compile(r"%json\s*")
_NAME = re.compile("[a-z][a-z0-9_]*")


class Grammar(GrammarConstraint):
    """Text of a context-free grammar in llguidance's dialect of Lark, whose first rule is ``start``.

    JSON schemas may stand in a rule: ``start: "<tool_call>" call "</tool_call>"``, ``call: %json {"type": "object"}``.
    They are checked as ``JsonSchema`` checks its own.

    Other constraints may stand in a rule by name: ``Grammar('start: "id " @id', parts={"id": Regex("[0-9]+")})``.
    """

    definition: str = Field(description="the grammar's rules")
    parts: tuple[tuple[str, SerializeAsAny[GrammarConstraint]], ...] = Field(
        default=(), description="constraints by the names that rules have for them"
    )

    def __init__(self, definition: str, **options: Any) -> None:
        super().__init__(definition=definition, **options)
        check_size("the grammar", self.definition)
        _with_schemas_checked(self.definition)

    @field_validator("parts", mode="before")
    @classmethod
    def _as_pairs(cls, parts: Any) -> Any:
        return tuple(parts.items()) if isinstance(parts, Mapping) else parts

    @field_validator("parts")
    @classmethod
    def _has_names(cls, parts: tuple[tuple[str, GrammarConstraint], ...]) -> tuple[tuple[str, GrammarConstraint], ...]:
        for name, part in parts:
            if not _NAME.fullmatch(name):
                raise ValueError(f"the part's name {name!r} isn't lower-case letters, digits and underscores")
            if isinstance(part, Grammar) and part.parts:
                raise ValueError(f"the part {name!r} has parts of its own: give them to the outer grammar")
        return parts

    def grammar(self, vocabulary: Vocabulary) -> str:
        rules = str(library().LLMatcher.grammar_from_lark(_with_schemas_checked(self.definition)))
        if not self.parts:
            return rules
        parts = [named(name, part.grammar(vocabulary)) for name, part in self.parts]
        return json.dumps({"grammars": [{"lark_grammar": rules}, *parts]})


def _with_schemas_checked(definition: str) -> str:
    """The rules, with the escapes of each schema's strings limited.

    Raises:
        RequestError: for a schema that can't be enforced.
    """
    parts, end = list[str](), 0
    for found in _JSON.finditer(definition):
        try:
            schema, after = json.JSONDecoder(parse_float=as_decimal).raw_decode(definition, found.end())
        except json.JSONDecodeError:
            continue  # within a text or comment; otherwise the library refuses it
        except RecursionError:
            raise too_deep() from None
        except ValueError as error:
            raise RequestError(f"a JSON schema of the grammar isn't JSON: {in_one_line(error)}") from None
        if found.start() >= end and schema and isinstance(schema, dict):  # the library refuses lists, texts and numbers
            check_schema(schema)
            limited = with_exact_formats(json.loads(definition[found.end() : after]))
            limited["x-guidance"] = {"json_allowed_escapes": ALLOWED_ESCAPES}
            parts += definition[end : found.end()], json.dumps(limited, ensure_ascii=False)
            end = after
    return "".join([*parts, definition[end:]])
