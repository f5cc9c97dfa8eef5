"""Constraints on content, as requests define them: OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from collections.abc import Callable
from typing import Any

from specdec.apps.serving.errors import ApiError, invalid
from specdec.apps.serving.lenient_schema import LenientSchema, any_value_of, log_unenforced
from specdec.apps.serving.schemas import ResponseFormat, Sampling
from specdec.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import check_size, library
from specdec.errors import RequestError, in_one_line

_Field = tuple[str, Any, Callable[[Any], GrammarConstraint]]  # its name, its value, and the function of its constraint
_SCHEMA = "response_format.json_schema.schema"
_HAVE_STRICT = _SCHEMA, ".function.parameters"  # fields beside which a request may have "strict"
_OF_A_SCHEMA = "the JSON schema"  # is how errors begin that are about one


def content_constraint(body: Sampling) -> tuple[GrammarConstraint | None, str]:
    """Return the constraint on a request's content, and the field that has it.

    Raises:
        ApiError: for a constraint that can't be enforced, or more than one.
    """
    fields = _fields(body)
    if len(fields) > 1:
        names = " and ".join(param for param, _, _ in fields)
        raise ApiError(400, f"{names} are both given: give one.", fields[1][0], "invalid_value")
    for param, value, make in fields:
        try:
            return make(value), param
        except RequestError as error:
            raise refusal(error, param) from None
    return None, ""


def schema_constraint(schema: Any, is_strict: bool, param: str) -> GrammarConstraint:
    """Return the constraint of a JSON schema; any JSON for one that isn't strict and can't be enforced.

    "Any JSON" is any object, or any value if the schema's type isn't object. The log then says why.

    Raises:
        ApiError: with the place in the schema, if it can't be enforced.
    """
    try:
        enforced = JsonSchema(schema)
    except RequestError as error:
        if is_strict:
            raise refusal(error, param) from None
        log_unenforced(error)
        return any_value_of(schema)
    return enforced if is_strict else LenientSchema(enforced, any_value_of(schema))


def refusal(error: RequestError, param: str) -> ApiError:
    """Return the error for a constraint that was refused."""
    message = str(error)
    if message.startswith(_OF_A_SCHEMA) and param.endswith(_HAVE_STRICT):
        message += ' (with "strict": false, it isn\'t enforced)'
    return invalid(param, f"{message[:1].lower()}{message[1:]}")


def _fields(body: Sampling) -> list[_Field]:
    """Return the fields with constraints that a request has."""
    found: list[_Field] = []
    if body.response_format is not None and body.response_format.type != "text":
        param = "response_format" if body.response_format.json_schema is None else _SCHEMA
        found.append((param, body.response_format, _of_response_format))
    found += [
        ("guided_json", body.guided_json, JsonSchema),
        ("guided_regex", body.guided_regex, Regex),
        ("guided_choice", body.guided_choice, Choice),
        ("guided_grammar", body.guided_grammar, _grammar),
    ]
    outputs = body.structured_outputs
    if outputs is not None:
        found += [
            ("structured_outputs.json", outputs.json_, JsonSchema),
            ("structured_outputs.regex", outputs.regex, Regex),
            ("structured_outputs.choice", outputs.choice, Choice),
            ("structured_outputs.grammar", outputs.grammar, _grammar),
            ("structured_outputs.json_object", outputs.json_object or None, _any_object),
        ]
    return [each for each in found if each[1] is not None]


def _of_response_format(wanted: ResponseFormat) -> GrammarConstraint:
    definition = wanted.json_schema
    if definition is None:
        return JsonObject()
    schema = {"type": "object"} if definition.schema_ is None else definition.schema_
    return schema_constraint(schema, definition.strict is not False, _SCHEMA)


def _any_object(_: bool) -> JsonObject:
    return JsonObject()


def _grammar(text: str) -> Grammar:
    """Return a grammar in Lark, or translated from llama.cpp's GBNF, as vLLM takes both."""
    check_size("the grammar", text)
    if "::=" not in text:
        return Grammar(text)
    library()
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return Grammar(str(any_to_lark(text)))
    except RequestError:
        raise
    except Exception as error:  # the translation's
        raise RequestError(f"the grammar in GBNF can't be read: {in_one_line(error)}") from None
