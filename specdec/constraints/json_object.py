"""Any JSON object."""

import json
from typing import Any

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.json_schema import JsonSchema


class JsonObject(Constraint):
    """A JSON object of any content, with the whitespace that the model writes; ``result.parsed`` is a dict."""

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return JsonSchema({"type": "object"}, whitespace="any").start(vocabulary)

    def parse(self, text: str) -> Any:
        return json.loads(text)
