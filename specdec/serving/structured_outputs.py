"""Constraints on content, as requests define them: OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from collections.abc import Callable
from typing import Any

from specdec.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.errors import RequestError, in_one_line
from specdec.serving.errors import ApiError
from specdec.serving.schemas import ResponseFormat, Sampling

Wanted = tuple[str, Callable[[str], GrammarConstraint | None]]  # the field, and what makes its constraint


def content_constraint(body: Sampling) -> tuple[GrammarConstraint | None, str]:
    """Return the constraint on a request's content, and the field that has it.

    Raises:
        ApiError: for a constraint that can't be enforced, or more than one.
    """
    wanted = _wanted(body)
    if len(wanted) > 1:
        names = " and ".join(param for param, _ in wanted)
        raise ApiError(400, f"{names} are both given: give one.", wanted[1][0], "invalid_value")
    for param, make in wanted:
        return make(param), param
    return None, ""


def schema_constraint(schema: Any, strict: bool | None, param: str) -> GrammarConstraint:
    """Return the constraint of a JSON schema; any object for one that isn't ``strict`` and can't be enforced.

    Args:
        strict: as the request has it; None is enforced as well.

    Raises:
        ApiError: with the place in the schema, if it can't be enforced.
    """
    try:
        return JsonSchema(schema)
    except RequestError as error:
        if strict is False:
            return JsonObject()
        raise refusal(error, param) from None


def refusal(error: RequestError, param: str) -> ApiError:
    """Return the error for a constraint that was refused."""
    message = str(error).rstrip(".")
    return ApiError(400, f"Invalid value for '{param}': {message[:1].lower()}{message[1:]}.", param, "invalid_value")


def _wanted(body: Sampling) -> list[Wanted]:
    found: list[Wanted] = []
    if body.response_format is not None and body.response_format.type != "text":
        found.append(("response_format", lambda param: _of_response_format(body.response_format, param)))
    outputs = body.structured_outputs
    fields: list[tuple[str, Any, Callable[..., GrammarConstraint]]] = [
        ("guided_json", body.guided_json, JsonSchema),
        ("guided_regex", body.guided_regex, Regex),
        ("guided_choice", body.guided_choice, Choice),
        ("guided_grammar", body.guided_grammar, _grammar),
    ]
    if outputs is not None:
        fields += [
            ("structured_outputs.json", outputs.json_, JsonSchema),
            ("structured_outputs.regex", outputs.regex, Regex),
            ("structured_outputs.choice", outputs.choice, Choice),
            ("structured_outputs.grammar", outputs.grammar, _grammar),
            ("structured_outputs.json_object", outputs.json_object or None, lambda _: JsonObject()),
        ]
    for name, value, make in fields:
        if value is not None:
            found.append((name, lambda param, make=make, value=value: _made(make, value, param)))  # type: ignore[misc]
    return found


def _of_response_format(wanted: ResponseFormat | None, param: str) -> GrammarConstraint:
    if wanted is None or wanted.json_schema is None:
        return JsonObject()
    definition = wanted.json_schema
    schema = {"type": "object"} if definition.schema_ is None else definition.schema_
    return schema_constraint(schema, definition.strict, f"{param}.json_schema.schema")


def _made(make: Callable[..., GrammarConstraint], value: Any, param: str) -> GrammarConstraint:
    try:
        return make(value)
    except RequestError as error:
        raise refusal(error, param) from None


def _grammar(text: str) -> Grammar:
    """Return a grammar in Lark, or translated from llama.cpp's GBNF, as vLLM takes both."""
    if "::=" not in text:
        return Grammar(text)
    from specdec.constraints.matcher import library

    library()
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return Grammar(str(any_to_lark(text)))
    except RequestError:
        raise
    except Exception as error:  # the translation's
        raise RequestError(f"the grammar in GBNF can't be read: {in_one_line(error)}") from None
