"""Tool calls of a model whose template has no known format: JSON objects, a line for each, written only if required."""

from specdec.serving.tool_parsers.call_syntax import CallSyntax

JSON_CALLS = CallSyntax(
    name="json", before_name='{"name": "', after_name='", "arguments": ', after_arguments="}", separator="\n"
)
