"""One of some texts."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from specdec.constraints.base import Vocabulary
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import check_size, library


class Choice(GrammarConstraint):
    """One of some texts, as it is written."""

    options: tuple[str, ...] = Field(min_length=1, description="the texts")

    def __init__(self, options: Sequence[str], **more: Any) -> None:
        super().__init__(options=options, **more)
        check_size("the choice", self._lark())

    def grammar(self, vocabulary: Vocabulary) -> str:
        return str(library().LLMatcher.grammar_from_lark(self._lark()))

    def _lark(self) -> str:
        return "start: " + " | ".join(json.dumps(option, ensure_ascii=False) for option in self.options)
