"""The syntaxes of tool calls that are known, with the chat templates of the models that write them."""

import secrets
import string
from collections.abc import Sequence

from specdec.apps.serving.tool_parsers.call_syntax import CallSyntax

_DEEPSEEK, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL, _DEEPSEEK_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"


def _mistral_id() -> str:
    """Return a new call's id: nine letters and digits, which Mistral's templates require."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


# Mistral's models: a list of JSON objects, or, in newer ones, names and arguments with a marker before each.
_MISTRAL = CallSyntax(
    name="mistral",
    fits=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" not in template,
    opening="[TOOL_CALLS][",
    before_name='{"name": "',
    after_name='", "arguments": ',
    after_arguments="}",
    separator=", ",
    closing="]",
    trigger="[TOOL_CALLS]",
    make_id=_mistral_id,
)
_MISTRAL_ARGS = CallSyntax(
    name="mistral_args",
    fits=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    before_name="[TOOL_CALLS]",
    after_name="[ARGS]",
    after_arguments="",
    trigger="[TOOL_CALLS]",
    make_id=_mistral_id,
)
# DeepSeek's models: V3 and R1 write the arguments as a block of Markdown, V3.1 as plain JSON.
_DEEPSEEK_V3 = CallSyntax(
    name="deepseek_v3",
    fits=lambda template: _DEEPSEEK in template and "```json" in template,
    opening=_DEEPSEEK,
    before_name=f"{_DEEPSEEK_CALL}function{_DEEPSEEK_SEPARATOR}",
    after_name="\n```json\n",
    after_arguments=f"\n```{_DEEPSEEK_CALL_END}",
    separator="\n",
    closing=_DEEPSEEK_END,
    trigger=_DEEPSEEK,
)
_DEEPSEEK_V31 = CallSyntax(
    name="deepseek_v31",
    fits=lambda template: _DEEPSEEK in template and "```json" not in template,
    opening=_DEEPSEEK,
    before_name=_DEEPSEEK_CALL,
    after_name=_DEEPSEEK_SEPARATOR,
    after_arguments=_DEEPSEEK_CALL_END,
    closing=_DEEPSEEK_END,
    trigger=_DEEPSEEK,
)
# Hermes and Qwen: a JSON object in tags for each call. Qwen3-Coder's templates have XML between the same tags.
_HERMES = CallSyntax(
    name="hermes",
    fits=lambda template: "<tool_call>" in template and "<function=" not in template,
    before_name='<tool_call>\n{"name": "',
    after_name='", "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)
# Llama 3.1, 3.2 and 3.3: the answer is a JSON object, or several, separated by semicolons.
_LLAMA3_JSON = CallSyntax(
    name="llama3_json",
    fits=lambda template: "<|python_tag|>" in template or '{"name": function name, "parameters": ' in template,
    before_name='{"name": "',
    after_name='", "parameters": ',
    after_arguments="}",
    separator="; ",
    trigger="{",
    begins_text=True,
    prefix="<|python_tag|>",
)
# Any other template: JSON objects, a line for each, written only if a call is required.
JSON_CALLS = CallSyntax(
    name="json",
    fits=lambda _: True,
    before_name='{"name": "',
    after_name='", "arguments": ',
    after_arguments="}",
    separator="\n",
)
# The first one that fits is a template's.
SYNTAXES: Sequence[CallSyntax] = (
    _MISTRAL, _MISTRAL_ARGS, _DEEPSEEK_V3, _DEEPSEEK_V31, _HERMES, _LLAMA3_JSON, JSON_CALLS,
)  # fmt: skip
