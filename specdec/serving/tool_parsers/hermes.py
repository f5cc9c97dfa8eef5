"""Tool calls of Hermes and Qwen: a JSON object in ``<tool_call>`` tags for each call."""

from specdec.serving.tool_parsers.call_syntax import CallSyntax

HERMES = CallSyntax(
    name="hermes",
    before_name='<tool_call>\n{"name": "',
    after_name='", "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)


def is_hermes(template: str) -> bool:
    """Return True for templates with these tags; Qwen3-Coder's have XML between the same ones."""
    return "<tool_call>" in template and "<function=" not in template
