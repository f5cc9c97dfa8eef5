"""The answer format of a model, by its chat template."""

from collections.abc import Mapping
from typing import Any

from specdec.apps.serving.tool_parsers.base import AnswerFormat
from specdec.apps.serving.tool_parsers.gpt_oss import GptOssFormat, is_gpt_oss
from specdec.apps.serving.tool_parsers.known_syntaxes import SYNTAXES
from specdec.apps.serving.tool_parsers.reasoning import reasoning_tags
from specdec.apps.serving.tool_parsers.tagged import TaggedFormat
from specdec.errors import RequestError


def answer_format(tokenizer: Any, tool_parser: str | None = None) -> AnswerFormat:
    """Return the format of the answers of a tokenizer's model.

    Args:
        tool_parser: the name of a format, instead of the one that the chat template has.

    Raises:
        RequestError: for an unknown name.
    """
    check_tool_parser(tool_parser)
    template = getattr(tokenizer, "chat_template", None) or ""
    text = "\n".join(template.values()) if isinstance(template, Mapping) else str(template)
    if tool_parser == GptOssFormat.name or (tool_parser is None and is_gpt_oss(text)):
        return GptOssFormat()
    syntax = next(each for each in SYNTAXES if (each.name == tool_parser if tool_parser else each.fits(text)))
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return TaggedFormat(syntax, reasoning_tags(text, [token.content for token in added.values()]))


def check_tool_parser(name: str | None) -> None:
    """Raise RequestError for an unknown name of a format."""
    known = [*(syntax.name for syntax in SYNTAXES), GptOssFormat.name]
    if name is not None and name not in known:
        raise RequestError(f"--tool-parser {name!r}: it must be one of {', '.join(known)}")
