"""One of some texts."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.matcher import check_size, library, start


class Choice(Constraint):
    """One of some texts, as it is written."""

    options: tuple[str, ...] = Field(min_length=1, description="the texts")

    def __init__(self, options: Sequence[str], **more: Any) -> None:
        super().__init__(options=options, **more)
        check_size("the choice", self._lark())

    def start(self, vocabulary: Vocabulary) -> ConstraintState:
        return start(library().LLMatcher.grammar_from_lark(self._lark()), vocabulary)

    def _lark(self) -> str:
        return "start: " + " | ".join(json.dumps(option, ensure_ascii=False) for option in self.options)
