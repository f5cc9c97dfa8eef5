"""Any JSON object."""

from typing import Any

from specdec.constraints.base import Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.json_schema import JsonSchema, plain_data


class JsonObject(GrammarConstraint):
    """A JSON object of any content, with the whitespace that the model writes; ``result.parsed`` is a dict."""

    def grammar(self, vocabulary: Vocabulary) -> str:
        return JsonSchema({"type": "object"}, whitespace="any").grammar(vocabulary)

    def parse(self, text: str) -> Any:
        return plain_data(text)
