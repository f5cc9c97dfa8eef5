"""Tool calls of Llama 3: the answer is a JSON object, or several, separated by semicolons."""

from specdec.serving.tool_parsers.call_syntax import CallSyntax

LLAMA3_JSON = CallSyntax(
    name="llama3_json",
    before_name='{"name": "',
    after_name='", "parameters": ',
    after_arguments="}",
    separator="; ",
    trigger="{",
    begins_text=True,
    prefix="<|python_tag|>",
)


def is_llama3_json(template: str) -> bool:
    """Return True for the templates of Llama 3.1, 3.2 and 3.3."""
    return "<|python_tag|>" in template or '{"name": function name, "parameters": ' in template
