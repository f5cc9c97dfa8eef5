"""Formats of answers, one for each kind of chat template: reasoning, content and tool calls."""
