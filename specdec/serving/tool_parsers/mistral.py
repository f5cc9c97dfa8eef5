"""Tool calls of Mistral's models: a list of JSON objects after ``[TOOL_CALLS]``, or, in newer ones, names and
arguments with a marker before each.
"""

import secrets
import string

from specdec.serving.tool_parsers.call_syntax import CallSyntax


def _id() -> str:
    """Return a new call's id: nine letters and digits, which the templates require."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


MISTRAL = CallSyntax(
    name="mistral",
    opening="[TOOL_CALLS][",
    before_name='{"name": "',
    after_name='", "arguments": ',
    after_arguments="}",
    separator=", ",
    closing="]",
    trigger="[TOOL_CALLS]",
    make_id=_id,
)
MISTRAL_ARGS = CallSyntax(
    name="mistral_args",
    before_name="[TOOL_CALLS]",
    after_name="[ARGS]",
    after_arguments="",
    trigger="[TOOL_CALLS]",
    make_id=_id,
)


def is_mistral(template: str) -> bool:
    """Return True for templates with a list of calls."""
    return "[TOOL_CALLS]" in template and "[ARGS]" not in template


def is_mistral_args(template: str) -> bool:
    """Return True for templates with a marker before each name and each object of arguments."""
    return "[TOOL_CALLS]" in template and "[ARGS]" in template
