"""Text of a context-free grammar."""

import json
import re
from typing import Any

from pydantic import Field

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.formats import with_exact_formats
from specdec.constraints.json_schema import ALLOWED_ESCAPES
from specdec.constraints.matcher import check_size, library, start
from specdec.constraints.schema_check import check_schema
from specdec.errors import RequestError, in_one_line

_JSON = re.compile(r"%json\s*")


class Grammar(Constraint):
    """Text of a context-free grammar in llguidance's dialect of Lark, whose first rule is ``start``.

    JSON schemas may stand in a rule: ``start: "<tool_call>" call "</tool_call>"``, ``call: %json {"type": "object"}``.
    They are checked as ``JsonSchema`` checks its own.
    """

    definition: str = Field(description="the grammar's rules")

    def __init__(self, definition: str, **options: Any) -> None:
        super().__init__(definition=definition, **options)
        check_size("the grammar", self.definition)
        _with_schemas_checked(self.definition)

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return start(library().LLMatcher.grammar_from_lark(_with_schemas_checked(self.definition)), vocabulary)


def _with_schemas_checked(definition: str) -> str:
    """The rules, with the escapes of each schema's strings limited.

    Raises:
        RequestError: for a schema that can't be enforced.
    """
    parts, end = list[str](), 0
    for found in _JSON.finditer(definition):
        try:
            schema, after = json.JSONDecoder().raw_decode(definition, found.end())
        except json.JSONDecodeError:
            continue  # within a text or comment; otherwise the library refuses it
        except (ValueError, RecursionError) as error:
            raise RequestError(f"a JSON schema of the grammar isn't JSON: {in_one_line(error)}") from None
        if found.start() >= end and schema and isinstance(schema, dict):  # the library refuses lists, texts and numbers
            check_schema(schema)
            limited = with_exact_formats(schema) | {"x-guidance": {"json_allowed_escapes": ALLOWED_ESCAPES}}
            parts += definition[end : found.end()], json.dumps(limited, ensure_ascii=False)
            end = after
    return "".join([*parts, definition[end:]])
