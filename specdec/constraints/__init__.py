"""Constraints on what a model may write: JSON schemas, regular expressions, choices and grammars."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.constraints.base import Constraint as Constraint
    from specdec.constraints.base import ConstraintState as ConstraintState
    from specdec.constraints.base import Vocabulary as Vocabulary
    from specdec.constraints.choice import Choice as Choice
    from specdec.constraints.grammar import Grammar as Grammar
    from specdec.constraints.json_schema import JsonObject as JsonObject
    from specdec.constraints.json_schema import JsonSchema as JsonSchema
    from specdec.constraints.path_state import PathState as PathState
    from specdec.constraints.regex import Regex as Regex
    from specdec.constraints.structural_tags import StructuralTags as StructuralTags
    from specdec.constraints.structural_tags import Tag as Tag
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
