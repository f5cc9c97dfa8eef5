"""Constraints on what a model may write: JSON schemas, regular expressions, choices and grammars."""

from specdec.constraints.base import Constraint, ConstraintState, Vocabulary
from specdec.constraints.choice import Choice
from specdec.constraints.grammar import Grammar
from specdec.constraints.json_object import JsonObject
from specdec.constraints.json_schema import JsonSchema
from specdec.constraints.regex import Regex
from specdec.constraints.structural_tags import StructuralTags, Tag

__all__ = [
    "Choice",
    "Constraint",
    "ConstraintState",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "Regex",
    "StructuralTags",
    "Tag",
    "Vocabulary",
]
