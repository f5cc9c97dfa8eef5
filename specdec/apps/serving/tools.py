"""The tools of a request, and its choice among them, as OpenAI defines them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.apps.serving.errors import invalid
from specdec.apps.serving.structured_outputs import schema_constraint
from specdec.apps.serving.tool_parsers.base import Function

_MOST_TOOLS = 128  # OpenAI's
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The functions that an answer may call.

    Attributes:
        functions: empty if the answer may call none.
        params: by function, the field of the request that defines its arguments.
        is_required: True if the answer must call one.
        is_named: True if the request names the one function to call.
    """

    functions: Sequence[Function] = ()
    params: Sequence[str] = ()
    is_required: bool = False
    is_named: bool = False


def tool_choice(tools: Sequence[Any], choice: Any, is_strict: bool) -> ToolChoice:
    """Return the functions that an answer may call.

    Args:
        tools: definitions of functions.
        choice: "none", "auto", "required", a named function, or allowed tools; None for "auto".
        is_strict: whether a definition without "strict" is; one that isn't is offered even if it can't be enforced.

    Raises:
        ApiError: with the invalid field.
    """
    if len(tools) > _MOST_TOOLS:
        raise invalid("tools", f"{len(tools)} tools were given, and {_MOST_TOOLS} are allowed")
    definitions = {}
    for index, tool in enumerate(tools):
        name, definition = _definition(tool, f"tools[{index}]")
        if name in definitions:
            raise invalid(f"tools[{index}].function.name", f"{name!r} is the name of an earlier tool as well")
        definitions[name] = definition, f"tools[{index}].function.parameters"
    names, is_required = _chosen(choice, [*definitions])
    functions = [Function(name, _arguments(*definitions[name], is_strict)) for name in names]
    is_named = isinstance(choice, Mapping) and choice.get("type") == "function"
    return ToolChoice(functions, [definitions[name][1] for name in names], is_required, is_named)


def _definition(tool: Any, place: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(tool, Mapping):
        raise invalid(place, "give an object")
    if tool.get("type", "function") != "function":
        raise invalid(f"{place}.type", f"{str(tool['type'])[:40]!r}: functions are the only tools")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise invalid(f"{place}.function", "give an object with a name and parameters")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{place}.function.name", "give up to 128 letters, digits, underscores, dashes and dots")
    return name, function


def _arguments(definition: Mapping[str, Any], param: str, is_strict: bool) -> Any:
    """Return the constraint on the arguments of a function.

    Raises:
        ApiError: for a strict schema that can't be enforced, or one that isn't of an object.
    """
    parameters, strict = definition.get("parameters"), definition.get("strict")
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise invalid(param, "give a JSON schema")
    if not isinstance(strict, bool | None):
        raise invalid(param.removesuffix("parameters") + "strict", "give true or false")
    if parameters.get("type", "object") != "object":
        raise invalid(f"{param}.type", 'it must be "object"')
    return schema_constraint({**parameters, "type": "object"}, is_strict if strict is None else strict, param)


def _chosen(choice: Any, names: list[str]) -> tuple[list[str], bool]:
    """Return the names of the functions that may be called, and whether one must be."""
    if choice in (None, "auto", "none"):
        return [] if choice == "none" else names, False
    if not names:
        raise invalid("tool_choice", "it needs tools")
    if choice == "required":
        return names, True
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return [_known(choice, names, "tool_choice")], True
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        raise invalid(
            "tool_choice", 'give "none", "auto", "required", a function\'s name as an object, or allowed tools'
        )
    return _allowed(choice.get("allowed_tools"), names)


def _allowed(allowed: Any, names: list[str]) -> tuple[list[str], bool]:
    place = "tool_choice.allowed_tools"
    tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(tools, list) or not tools or allowed.get("mode") not in ("auto", "required"):
        raise invalid(place, 'give an object with the mode "auto" or "required", and tools')
    chosen = [_known(tool, names, f"{place}.tools[{index}]") for index, tool in enumerate(tools)]
    return [name for name in names if name in chosen], allowed["mode"] == "required"


def _known(choice: Any, names: list[str], place: str) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise invalid(f"{place}.function.name", f"no tool is named {str(name)[:128]!r}")
    return str(name)
