"""Tool calls of DeepSeek's models: V3 and R1 write the arguments as a block of Markdown, V3.1 as plain JSON."""

from specdec.serving.tool_parsers.call_syntax import CallSyntax

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

DEEPSEEK_V3 = CallSyntax(
    name="deepseek_v3",
    opening=_BEGIN,
    before_name=f"{_CALL}function{_SEPARATOR}",
    after_name="\n```json\n",
    after_arguments=f"\n```{_CALL_END}",
    separator="\n",
    closing=_END,
    trigger=_BEGIN,
)
DEEPSEEK_V31 = CallSyntax(
    name="deepseek_v31",
    opening=_BEGIN,
    before_name=_CALL,
    after_name=_SEPARATOR,
    after_arguments=_CALL_END,
    closing=_END,
    trigger=_BEGIN,
)


def is_deepseek_v3(template: str) -> bool:
    """Return True for templates with blocks of Markdown."""
    return _BEGIN in template and "```json" in template


def is_deepseek_v31(template: str) -> bool:
    """Return True for templates with plain JSON."""
    return _BEGIN in template and "```json" not in template
