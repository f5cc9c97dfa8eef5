"""How models write their answers: reasoning, content and tool calls, by the format of their chat template."""
